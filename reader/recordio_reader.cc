#include "reader/recordio_reader.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "framework/tensor_serialization.h"
#include "reader/reader_op_util.h"

namespace headrace {

std::string RecordOfBatch(const LoDTensorArray& batch) {
  const auto count = static_cast<uint32_t>(batch.size());
  std::string record(reinterpret_cast<const char*>(&count), sizeof(count));
  for (const LoDTensor& tensor : batch) {
    record += SerializedHeader(tensor);
    record.append(static_cast<const char*>(tensor.raw_data()), tensor.nbytes());
  }
  return record;
}

LoDTensorArray BatchOfRecord(const std::string& name, std::string_view record) {
  MemorySource source(name, record);
  const auto count = source.Number<uint32_t>("the number of tensors");
  LoDTensorArray batch;
  for (uint32_t i = 0; i < count; ++i) {
    ReadTensor(&source, &batch.emplace_back());
  }
  HR_ENFORCE(count > 0 && source.left() == 0, DataLoss, name, " holds ", count, " tensors and ", source.left(),
             " bytes more");
  return batch;
}

void ReadBatch(RecordIOReader* file, LoDTensorArray* out) {
  std::string_view record;
  if (file->Next(&record)) {
    *out = BatchOfRecord(StrCat("'", file->path(), "', record ", file->record_index()), record);
  }
}

RecordIOFileReader::RecordIOFileReader(const std::string& path, BatchContract contract)
    : ReaderBase(std::move(contract)), file_(path) {}

void RecordIOFileReader::ReadNextImpl(LoDTensorArray* out) { ReadBatch(&file_, out); }

bool RecordIOFileReader::RewindImpl() {
  file_.Rewind();
  return true;
}

namespace {

class CreateRecordIOFileReaderOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    CreateReader(scope, Output("Out"), [this] {
      return std::make_shared<RecordIOFileReader>(Attr<std::string>("filename"), ContractOfRecords(desc()));
    });
  }
};

HEADRACE_REGISTER_OP(create_recordio_file_reader)
    .Comment("Creates a reader of the batches in a RecordIO file. Nothing if it exists.")
    .Output("Out", "reader variable")
    .Attr<std::string>("filename", "the file")
    .With(DeclareContractAttrs)
    .InferShape([](InferShapeContext& context) { DeclareReader(context, ContractFromAttrs(context.op()).specs); })
    .Operator<CreateRecordIOFileReaderOp>();

}  // namespace
}  // namespace headrace
