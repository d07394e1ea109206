#include "reader/open_files_reader.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "framework/start_thread.h"
#include "reader/reader_op_util.h"
#include "reader/recordio/recordio.h"
#include "reader/recordio_reader.h"

namespace headrace {

OpenFilesReader::OpenFilesReader(std::vector<std::string> files, BatchContract contract, size_t thread_num,
                                 size_t buffer_size)
    : ReaderBase(std::move(contract)),
      files_(std::move(files)),
      thread_num_(std::min(thread_num, files_.size())),
      reading_(buffer_size) {
  HR_ENFORCE(!files_.empty(), InvalidArgument, "a reader of files needs one at least, got none");
  HR_ENFORCE(thread_num > 0, InvalidArgument, "a reader of files needs a thread at least, got 0");
  for (const std::string& file : files_) {
    const RecordIOReader opened(file);  // throws if it cannot be
  }
}

OpenFilesReader::~OpenFilesReader() {
  if (reading_.InOwner() && !reading_->threads.empty()) Shutdown();
}

void OpenFilesReader::ReadNextImpl(LoDTensorArray* out) {
  if (reading_->threads.empty()) Begin();
  Item item;
  reading_->buffer.Receive(&item);  // leaves it empty at the end of the data
  if (item.error != nullptr) {
    std::rethrow_exception(item.error);
  }
  *out = std::move(item.batch);
}

void OpenFilesReader::Begin() {
  next_file_ = 0;
  threads_left_ = thread_num_;
  const uint64_t epoch = reading_->buffer.epoch();
  try {
    for (size_t i = 0; i < thread_num_; ++i) {
      reading_->threads.push_back(StartThread("a thread that reads files", [this, epoch] { ReadFiles(epoch); }));
    }
  } catch (...) {
    reading_->buffer.Fail(std::current_exception(), epoch);
  }
}

// The last thread to end closes the buffer.
void OpenFilesReader::ReadFiles(uint64_t epoch) {
  try {
    for (size_t i = next_file_.fetch_add(1); i < files_.size(); i = next_file_.fetch_add(1)) {
      if (!ReadFile(files_[i], epoch)) return;
    }
    if (threads_left_.fetch_sub(1) == 1) reading_->buffer.Close(epoch);
  } catch (...) {
    reading_->buffer.Fail(std::current_exception(), epoch);
  }
}

bool OpenFilesReader::ReadFile(const std::string& path, uint64_t epoch) {
  std::optional<RecordIOReader> file;
  for (;;) {
    Item item;
    try {
      if (!file) file.emplace(path);
      ReadBatch(&*file, &item.batch);
    } catch (const Error&) {
      item = {{}, std::current_exception()};
    }
    const bool is_over = item.error == nullptr ? item.batch.empty() : !file || !file->can_continue();
    const bool is_item = item.error != nullptr || !item.batch.empty();
    if (is_item && reading_->buffer.Send(std::move(item), epoch) != SendResult::kTaken) return false;
    if (is_over) return true;
  }
}

void OpenFilesReader::Interrupt() { reading_->buffer.Interrupt(); }

void OpenFilesReader::Stop() {
  for (std::thread& thread : reading_->threads) thread.join();
  reading_->threads.clear();
  reading_->buffer.ReOpen();  // lets go of the batches now rather than at the next Start
  reading_->buffer.Close();
}

void OpenFilesReader::Restart() { reading_->buffer.ReOpen(); }

bool OpenFilesReader::RewindImpl() {
  Interrupt();
  Stop();
  Restart();
  return true;
}

namespace {

class OpenFilesOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    CreateReader(scope, Output("Out"), [this] {
      const size_t thread_num = Attr<bool>("is_test") ? 1 : PositiveAttr(desc(), "thread_num");
      return std::make_shared<OpenFilesReader>(Attr<std::vector<std::string>>("file_names"), ContractOfRecords(desc()),
                                               thread_num, PositiveAttr(desc(), "buffer_size"));
    });
  }
};

HEADRACE_REGISTER_OP(open_files)
    .Comment(
        "Creates a reader of the batches in RecordIO files, several of them concurrently. Does nothing if it exists.")
    .Output("Out", "reader variable")
    .Attr<std::vector<std::string>>("file_names", "the files", {},
                                    [](const std::vector<std::string>& files) {
                                      HR_ENFORCE(!files.empty(), InvalidArgument,
                                                 "attribute 'file_names' of 'open_files': expected a file, got none");
                                    })
    .Attr<bool>("is_test", "whether one thread reads the files in their order", false)
    .Attr<int32_t>("thread_num", "threads, each of which reads one file", 1)
    .Attr<int32_t>("buffer_size", "batches that are read ahead", 1)
    .With(DeclareContractAttrs)
    .InferShape([](InferShapeContext& context) {
      PositiveAttr(context.op(), "thread_num");
      PositiveAttr(context.op(), "buffer_size");
      DeclareReader(context, ContractFromAttrs(context.op()).specs);
    })
    .Operator<OpenFilesOp>();

}  // namespace
}  // namespace headrace
