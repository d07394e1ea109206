// A source that reads batches from a RecordIO file. A record is a batch: uint32 number of tensors, and the tensors in
// the format of framework/tensor_serialization.h.
#pragma once

#include <string>
#include <string_view>

#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "reader/reader.h"
#include "reader/recordio/recordio.h"

namespace headrace {

// The record of a batch, and back. The second throws DataLoss naming `name` (of the record) if it holds none.
HEADRACE_API std::string RecordOfBatch(const LoDTensorArray& batch);
HEADRACE_API LoDTensorArray BatchOfRecord(const std::string& name, std::string_view record);

// Takes the next batch of `file`; leaves `*out` empty at its end. Errors name the file and the record.
HEADRACE_API void ReadBatch(RecordIOReader* file, LoDTensorArray* out);

// Yields the batches of one file in their order, holding one chunk in memory. A damaged chunk is a DataLoss, once, and
// is passed over. Thread-safety: that of ReaderBase.
class HEADRACE_API RecordIOFileReader : public ReaderBase {
 public:
  // Throws as RecordIOReader's and ReaderBase's constructors.
  RecordIOFileReader(const std::string& path, BatchContract contract);

  bool CanRewind() const override { return true; }

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  void Restart() override { file_.Rewind(); }
  bool RewindImpl() override;

  RecordIOReader file_;  // guarded by the read turn
};

}  // namespace headrace
