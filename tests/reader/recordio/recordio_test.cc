#include "reader/recordio/recordio.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "reader/recordio/checksum.h"

namespace headrace {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

// What Fluid's own library, snappystream 0.2.8 with Snappy 1.1.9, makes of the payload of these records, in a chunk.
const std::vector<std::string> kRecords = {"the water, the wheel, the water, the wheel, the water, the wheel", "",
                                           std::string("\0\1\2\3\4\5\6\7\0\1\2\3\4\5\6\7\0\1\2\3\4\5\6\7", 24)};
const std::string kFluidsStream(
    "\x73\x6E\x61\x70\x70\x79\x00\x01\x00\x31\x77\xB5\x83\x74\x64\x38"
    "\x40\x00\x00\x00\x74\x68\x65\x20\x77\x61\x74\x65\x72\x2C\x20\x05"
    "\x0B\x0C\x68\x65\x65\x6C\x0D\x0B\x92\x16\x00\x3C\x00\x00\x00\x00"
    "\x18\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x3E\x08\x00",
    63);

class RecordIO : public testing::Test {
 protected:
  RecordIO() {
    std::string name = testing::TempDir() + "recordio_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~RecordIO() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path& Folder() const { return folder_; }
  std::string Path() const { return folder_ / "data"; }
  std::string File() const {
    std::ifstream file(Path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void SetFile(const std::string& bytes) const { std::ofstream(Path(), std::ios::binary) << bytes; }
  void WriteRecords(RecordIOCompressor compressor, size_t per_chunk) const {
    RecordIOWriter writer(Path(), compressor, per_chunk);
    for (const std::string& record : kRecords) {
      writer.Write(record);
    }
    writer.Close();
  }
  static std::vector<std::string> ReadAll(RecordIOReader* reader) {
    std::vector<std::string> records;
    for (std::string_view record; reader->Next(&record);) {
      records.emplace_back(record);
    }
    return records;
  }

 private:
  std::filesystem::path folder_;
};

std::string Number(uint32_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

std::string Chunk(uint32_t records, uint32_t compressor, const std::string& payload) {
  return Number(0x01020304) + Number(records) + Number(Crc32(payload)) + Number(compressor) +
         Number(static_cast<uint32_t>(payload.size())) + payload;
}

TEST_F(RecordIO, GivesBackWhatWasWritten) {
  for (const auto compressor : {RecordIOCompressor::kNoCompress, RecordIOCompressor::kSnappy}) {
    for (const size_t per_chunk : {1, 2, 1000}) {
      WriteRecords(compressor, per_chunk);
      RecordIOReader reader(Path());
      for (int pass = 0; pass < 2; ++pass) {
        EXPECT_THAT(ReadAll(&reader), ElementsAreArray(kRecords));
        reader.Rewind();
      }
    }
  }
}

TEST_F(RecordIO, ReadsAChunkThatFluidHasCompressed) {
  SetFile(Chunk(3, 1, kFluidsStream));
  RecordIOReader reader(Path());
  EXPECT_THAT(ReadAll(&reader), ElementsAreArray(kRecords));
}

// Another compressor may find other repetitions; the rest of the bytes follow from the format.
TEST_F(RecordIO, WritesCompressedChunksAsFluidDoes) {
  WriteRecords(RecordIOCompressor::kSnappy, 1000);
  const std::string file = File();
  ASSERT_GT(file.size(), 34U);
  const std::string payload = file.substr(20);
  EXPECT_EQ(file, Chunk(3, 1, payload));
  EXPECT_EQ(payload.substr(0, 8), kFluidsStream.substr(0, 8));
  EXPECT_EQ(payload.substr(10, 4), kFluidsStream.substr(10, 4));  // the checksum of the data
  EXPECT_LE(payload.size(), kFluidsStream.size() + 8);
}

TEST_F(RecordIO, NamesAndPassesOverADamagedChunk) {
  const std::string one = Chunk(1, 0, Number(1) + "a");
  const std::string no_stream = Chunk(1, 1, Number(1) + "a");
  std::string damaged = kFluidsStream;
  damaged[14] = static_cast<char>(damaged[14] + 1);  // how much data there are
  SetFile(one + no_stream + Chunk(3, 1, damaged) + Chunk(3, 1, kFluidsStream.substr(0, 40)) + one);
  RecordIOReader reader(Path());
  std::string_view record;
  EXPECT_TRUE(reader.Next(&record));
  for (const char* expected : {"data', chunk 1, from record 1: the compressed data is not a Snappy stream",
                               "data', chunk 2, from record 2: Snappy block 0 is damaged",
                               "data', chunk 3, from record 5: Snappy block 0 has "}) {
    try {
      reader.Next(&record);
      ADD_FAILURE() << "nothing was thrown; expected " << expected;
    } catch (const DataLoss& error) {
      EXPECT_THAT(error.what(), HasSubstr(expected));
    }
  }
  EXPECT_TRUE(reader.Next(&record));
  EXPECT_EQ(reader.record_index(), 8U);
  EXPECT_FALSE(reader.Next(&record));
}

TEST_F(RecordIO, ACountOfRecordsThatIsWrongIsNoticed) {
  const std::string a = Number(1) + "a";
  SetFile(Chunk(1, 0, a + a) + Chunk(0, 0, a) + Chunk(2, 0, a + "xyz") + Chunk(1, 0, a));
  RecordIOReader reader(Path());
  std::vector<std::string> seen;
  for (std::string_view record;;) {
    try {
      if (!reader.Next(&record)) break;
      seen.emplace_back(record);
    } catch (const DataLoss& error) {
      seen.push_back(error.message().substr(error.message().find("chunk")));
      EXPECT_TRUE(reader.can_continue());
    }
  }
  EXPECT_THAT(seen, testing::ElementsAre("a", "chunk 0, from record 0: its header says 1 record, but 5 bytes follow",
                                         "chunk 1, from record 1: its header says 0 records, but 5 bytes follow", "a",
                                         "chunk 2, record 2: it is cut off", "a"));
}

TEST_F(RecordIO, TwoWritersOfOneFileDoNotMixUpWhatTheyWrite) {
  RecordIOWriter first(Path(), RecordIOCompressor::kNoCompress, 1);
  RecordIOWriter second(Path(), RecordIOCompressor::kNoCompress, 1);
  first.Write("first");
  second.Write("second");
  first.Write("first, too");
  second.Close();
  first.Close();
  {
    RecordIOWriter abandoned(Path(), RecordIOCompressor::kNoCompress, 1);
    abandoned.Write("third");
  }
  RecordIOReader reader(Path());
  EXPECT_THAT(ReadAll(&reader), ElementsAreArray({"first", "first, too"}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(Folder()), {}), 1) << "nothing else is left";
}

TEST_F(RecordIO, KnowsNoOtherCompressors) {
  for (const uint32_t compressor : {2, 3}) {
    EXPECT_THROW(RecordIOWriter(Path(), static_cast<RecordIOCompressor>(compressor), 1), Unimplemented);
    SetFile(Chunk(1, compressor, Number(1) + "a"));
    RecordIOReader reader(Path());
    std::string_view record;
    EXPECT_THROW(reader.Next(&record), Unimplemented);
    EXPECT_FALSE(reader.Next(&record));
  }
}

}  // namespace
}  // namespace headrace
