// headrace._core.RecordIOWriter and RecordIOReader.
#include "reader/recordio/recordio.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "framework/errors.h"
#include "python/bindings/bindings.h"
#include "python/bindings/numpy_interop.h"
#include "reader/recordio_reader.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

class BatchWriter {
 public:
  BatchWriter(std::string filename, RecordIOCompressor compressor, size_t max_num_records)
      : writer_(std::move(filename), compressor, max_num_records) {}

  void AppendTensor(const py::handle& tensor) {
    LoDTensor value = TensorFromPython(tensor, /*copy=*/false);
    HR_ENFORCE(value.initialized(), InvalidArgument, "tensor ", batch_.size(), " of a record holds no data");
    batch_.push_back(std::move(value));
  }
  void CompleteAppendTensor() {
    HR_ENFORCE(!batch_.empty(), FailedPrecondition, "a record needs a tensor: append_tensor comes first");
    writer_.Write(RecordOfBatch(batch_));
    batch_.clear();
  }
  void Write(const py::bytes& record) {
    HR_ENFORCE(batch_.empty(), FailedPrecondition, "a record of ", batch_.size(),
               " tensors has not been completed: complete_append_tensor comes before write");
    writer_.Write(std::string_view(record));
  }
  void Close() {
    HR_ENFORCE(batch_.empty(), FailedPrecondition, "a record of ", batch_.size(),
               " tensors has not been completed: complete_append_tensor comes before close");
    writer_.Close();
  }

 private:
  RecordIOWriter writer_;
  LoDTensorArray batch_;
};

py::bytes NextRecord(RecordIOReader& reader) {
  std::string_view record;
  if (!reader.Next(&record)) {
    throw py::stop_iteration();
  }
  return {record.data(), record.size()};
}

}  // namespace

void BindRecordIO(py::module_& m) {
  py::class_<BatchWriter> cls(m, "RecordIOWriter",
                              "Writes batches to a RecordIO file, which appears when it is closed; a writer that is "
                              "dropped before leaves none.\n"
                              "Not thread-safe.");
  py::enum_<RecordIOCompressor>(cls, "Compressor")
      .value("NoCompress", RecordIOCompressor::kNoCompress)
      .value("Snappy", RecordIOCompressor::kSnappy)
      .value("Gzip", RecordIOCompressor::kGzip);
  cls.def(py::init<std::string, RecordIOCompressor, size_t>(), py::arg("filename"),
          py::arg("compressor") = RecordIOCompressor::kSnappy, py::arg("max_num_records") = 1000,
          "``compressor`` is Snappy or NoCompress, else NotImplementedError; at most ``max_num_records`` make a chunk.")
      .def("append_tensor", &BatchWriter::AppendTensor, py::arg("tensor"),
           "The next tensor of the record; it must not change before complete_append_tensor.")
      .def("complete_append_tensor", &BatchWriter::CompleteAppendTensor, "Ends the record.")
      .def("write", &BatchWriter::Write, py::arg("record"), "A record of bytes, which a RecordIOReader gives back.")
      .def("close", &BatchWriter::Close, "Completes the file. OSError if it cannot be written; then there is none.");
  py::class_<RecordIOReader>(m, "RecordIOReader",
                             "Iterates over the records of a RecordIO file: bytes. OSError if it cannot be opened, "
                             "DataLoss if it is damaged.\n"
                             "Not thread-safe.")
      .def(py::init<std::string>(), py::arg("filename"))
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &NextRecord);
}

}  // namespace headrace::python
