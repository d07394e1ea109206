#include "reader/open_files_reader.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "reader/recordio/recordio.h"
#include "reader/recordio_reader.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

// Whether a file is opened, by any thread, after this object has been made.
class OpenWatch {
 public:
  explicit OpenWatch(const std::string& path) : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(inotify_add_watch(fd_, path.c_str(), IN_OPEN), 0) << path;
  }
  ~OpenWatch() { close(fd_); }
  OpenWatch(const OpenWatch&) = delete;
  OpenWatch& operator=(const OpenWatch&) = delete;

  bool WasOpened() {
    std::array<char, 4096> events{};
    return read(fd_, events.data(), events.size()) > 0;
  }

 private:
  const int fd_;
};

class OpenFilesReaderTest : public testing::Test {
 protected:
  OpenFilesReaderTest() {
    std::string name = testing::TempDir() + "open_files_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~OpenFilesReaderTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, int first, int batches) const {
    std::string path = folder_ / name;
    RecordIOWriter writer(path, RecordIOCompressor::kNoCompress, /*max_records=*/1);
    for (int i = 0; i < batches; ++i) writer.Write(RecordOfBatch(MakeBatch(static_cast<float>(first + i))));
    writer.Close();
    return path;
  }

  std::filesystem::path folder_;
};

// A thread whose batch the buffer refuses has nothing more to read: what it reads would be dropped, and ending a pass
// would take as long as reading all files.
TEST_F(OpenFilesReaderTest, OpensNoFurtherFileWhenAPassEndsEarly) {
  const std::vector<std::string> files = {Write("first", 0, 4), Write("second", 4, 4)};
  OpenFilesReader reader(files, {.specs = ScalarSpecs()}, /*thread_num=*/1, /*buffer_size=*/1);
  OpenWatch second(files[1]);
  LoDTensorArray batch;
  reader.ReadNext(&batch);
  EXPECT_EQ(ValueOf(batch), 0.0F);
  reader.Shutdown();
  EXPECT_FALSE(second.WasOpened());
  reader.Start();
  reader.ReadNext(&batch);
  reader.Rewind();
  EXPECT_FALSE(second.WasOpened());
  EXPECT_EQ(ReadAll(reader), Iota(8));
  EXPECT_TRUE(second.WasOpened());
}

}  // namespace
}  // namespace headrace
