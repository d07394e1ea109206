#include "framework/file_replacement.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/wait_hook.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

class FileReplacementTest : public testing::Test {
 protected:
  FileReplacementTest() {
    std::string name = (fs::temp_directory_path() / "file_replacement_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FileReplacementTest() override { fs::remove_all(folder_); }

  static std::string Read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void Replace(const fs::path& path, const std::string& content) {
    FileReplacement file(path);
    file.Write(content);
    file.Commit();
  }
  // The files of the folder, with their contents.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) {
        files[entry.path().lexically_relative(folder_).string()] = Read(entry.path());
      }
    }
    return files;
  }
  using FileMap = std::map<std::string, std::string>;

  fs::path folder_;
};

TEST_F(FileReplacementTest, ReplacesAFileOnceItIsComplete) {
  Replace(folder_ / "new" / "a", "old");
  {
    FileReplacement file(folder_ / "new" / "a");
    file.Write("ne");
    EXPECT_EQ(Read(folder_ / "new" / "a"), "old");
    file.Write("w");
    file.Commit();
  }
  EXPECT_EQ(Files(), (FileMap{{"new/a", "new"}}));
}

TEST_F(FileReplacementTest, LeavesNothingBehindWithoutCommit) {
  Replace(folder_ / "a", "old");
  {
    FileReplacement(folder_ / "a").Write("new");
  }
  EXPECT_EQ(Files(), (FileMap{{"a", "old"}}));
}

TEST_F(FileReplacementTest, WritersOfOneFileDoNotMeet) {
  FileReplacement first(folder_ / "a");
  FileReplacement second(folder_ / "a");
  first.Write(std::string(100'000, '1'));
  second.Write("22");
  first.Commit();
  EXPECT_EQ(Read(folder_ / "a"), std::string(100'000, '1'));
  FileReplacement third(folder_ / "a");  // by the name that the first one has given up
  third.Write("333");
  second.Commit();
  EXPECT_EQ(Read(folder_ / "a"), "22");
  third.Commit();
  EXPECT_EQ(Files(), (FileMap{{"a", "333"}}));
}

TEST_F(FileReplacementTest, ManyWritersAtTheSameTimeLeaveOneCompleteFile) {
  std::vector<std::thread> writers;
  for (char digit = '0'; digit < '8'; ++digit) {
    writers.emplace_back([this, digit] {
      for (int i = 0; i < 20; ++i) {
        Replace(folder_ / "a", std::string(1'000, digit));
      }
    });
  }
  for (std::thread& writer : writers) {
    writer.join();
  }
  const FileMap files = Files();
  ASSERT_EQ(files.size(), 1U);
  const std::string content = files.at("a");
  EXPECT_EQ(content, std::string(1'000, content.front()));
}

TEST_F(FileReplacementTest, AWriterThatDiedLeavesNothingForLong) {
  const pid_t child = ::fork();
  if (child == 0) {
    FileReplacement file(folder_ / "a");
    file.Write(std::string(100, 'x'));
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(Files().size(), 1U);
  Replace(folder_ / "a", "new");
  EXPECT_EQ(Files(), (FileMap{{"a", "new"}}));
}

TEST_F(FileReplacementTest, RefusesWhatIsNoFile) {
  fs::create_directory(folder_ / "folder");
  EXPECT_THROW(FileReplacement(folder_ / "folder"), IoError);
  EXPECT_THROW(FileReplacement("/dev/null"), IoError);
  EXPECT_THROW(FileReplacement(folder_ / ""), IoError);
  Replace(folder_ / "file", "x");
  EXPECT_THROW(FileReplacement(folder_ / "file" / "a"), IoError);
  EXPECT_EQ(Files(), (FileMap{{"file", "x"}}));
}

TEST_F(FileReplacementTest, AFileInThePlaceOfAFolderIsNamed) {
  Replace(folder_ / "file", "");
  EXPECT_THAT([&] { MakeFolders(folder_ / "file" / "below"); },
              testing::ThrowsMessage<IoError>(testing::HasSubstr("file' is not a folder")));
}

TEST_F(FileReplacementTest, ASetIsReplacedTogether) {
  Replace(folder_ / "a", "old a");
  Replace(folder_ / "other", "as it was");
  {
    FileSetReplacement set(folder_);
    set.Add("a").Write("new a");
    set.Add("inner/b").Write("new b");
    EXPECT_EQ(Read(folder_ / "a"), "old a");
    EXPECT_FALSE(fs::exists(folder_ / "inner" / "b"));
    set.Commit();
  }
  EXPECT_EQ(Files(), (FileMap{{"a", "new a"}, {"inner/b", "new b"}, {"other", "as it was"}}));
  {
    FileSetReplacement set(folder_);
    set.Add("a").Write("newer a");
  }
  EXPECT_EQ(Files(), (FileMap{{"a", "new a"}, {"inner/b", "new b"}, {"other", "as it was"}}));
}

// As a process leaves it that dies while it renames: the note is there, and some files have their names already.
TEST_F(FileReplacementTest, ASetThatWasLeftHalfRenamedIsCompletedByTheNext) {
  Replace(folder_ / "a", "old a");
  Replace(folder_ / "b", "old b");
  for (const bool reader : {true, false}) {
    std::ofstream(folder_ / ".unfinished-set", std::ios::binary) << std::string("a\0b\0", 4);
    Replace(folder_ / "a", "new a");  // as if it had been renamed
    std::ofstream(folder_ / ".b.unfinished-of-set") << "new b";
    if (reader) {
      const FileSetLock lock(folder_);
      EXPECT_EQ(Files(), (FileMap{{"a", "new a"}, {"b", "new b"}}));
    } else {
      FileSetReplacement set(folder_);
      EXPECT_EQ(Files(), (FileMap{{"a", "new a"}, {"b", "new b"}}));
    }
    Replace(folder_ / "b", "old b");
  }
}

TEST_F(FileReplacementTest, WhatWasWrittenBeforeTheNoteIsAsIfNothingHadBeenSaved) {
  Replace(folder_ / "a", "old a");
  const pid_t child = ::fork();
  if (child == 0) {
    FileSetReplacement set(folder_);
    set.Add("a").Write("new a");
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  {
    const FileSetLock lock(folder_);
    EXPECT_EQ(Read(folder_ / "a"), "old a");
  }
  FileSetReplacement set(folder_);
  set.Add("a").Write("newer a");
  set.Commit();
  EXPECT_EQ(Files(), (FileMap{{"a", "newer a"}}));
}

TEST_F(FileReplacementTest, ANoteThatLeadsOutOfTheFolderIsRefused) {
  Replace(folder_ / "inner" / "a", "old");
  std::ofstream(folder_ / "inner" / ".unfinished-set", std::ios::binary) << std::string("../stolen\0", 10);
  EXPECT_THROW(FileSetLock(folder_ / "inner"), DataLoss);
  std::ofstream(folder_ / "inner" / ".unfinished-set", std::ios::binary) << "a";  // cut off
  EXPECT_THROW(FileSetLock(folder_ / "inner"), DataLoss);
}

TEST_F(FileReplacementTest, AWaitForAFolderThatAHookEndsKeepsNoFile) {
  const FileSetReplacement set(folder_);
  const auto descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = descriptors();
  const ScopedWaitHook hook([] { throw Timeout("enough"); }, std::chrono::milliseconds(0));
  EXPECT_THROW(FileSetLock{folder_}, Timeout);
  EXPECT_EQ(descriptors(), before);
}

TEST_F(FileReplacementTest, AFileOfASetThatIsGoneIsAnIoError) {
  FileSetReplacement set(folder_);
  set.Add("a").Write("a");
  set.Add("a").Write("a again");  // under another name, since nobody else may have the first
  fs::remove(folder_ / ".a.unfinished-of-set-1");
  EXPECT_THROW(set.Commit(), IoError);
}

TEST_F(FileReplacementTest, NamesThatLeadOutOfTheFolderAreRefused) {
  FileSetReplacement set(folder_);
  for (const std::string name : {"../a", "/a", "", ".", "a/../../b", "a/", "a/./b"}) {
    EXPECT_THROW(set.Add(name), InvalidArgument) << name;
  }
}

// A file of the set's own name would be removed with it.
TEST_F(FileReplacementTest, ASetTakesNoFileOfTheNameOfItsNote) {
  FileSetReplacement set(folder_);
  for (const std::string name : {".unfinished-set", "below/.unfinished-set"}) {
    EXPECT_THROW(set.Add(name), InvalidArgument) << name;
  }
}

// Readers see all of one set or all of another, whoever writes.
TEST_F(FileReplacementTest, ReadersNeverFindFilesOfTwoSets) {
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  const auto save = [&](const std::string& content) {
    FileSetReplacement set(folder_);
    for (const std::string& name : names) {
      set.Add(name).Write(content);
    }
    set.Commit();
  };
  save("first");
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 8; ++i) {
        save(std::to_string(writer) + " " + std::to_string(i));
      }
    });
  }
  std::thread reader([&] {
    while (!done) {
      const FileSetLock lock(folder_);
      const std::string content = Read(folder_ / "a");
      for (const std::string& name : names) {
        EXPECT_EQ(Read(folder_ / name), content);
      }
    }
  });
  for (std::thread& writer : writers) {
    writer.join();
  }
  done = true;
  reader.join();
  EXPECT_EQ(Files().size(), names.size());
}

TEST_F(FileReplacementTest, AnExclusiveLockIsAlone) {
  const ScopedWaitHook hook([] { throw Timeout("locked"); }, std::chrono::milliseconds(0));
  fs::create_directories(folder_);
  {
    const FileSetLock lock(folder_);
    EXPECT_NO_THROW(FileSetLock{folder_});
    EXPECT_THROW(FileSetLock(folder_, /*exclusive=*/true), Timeout);
  }
  const FileSetLock lock(folder_, /*exclusive=*/true);
  EXPECT_THROW(FileSetLock{folder_}, Timeout);
}

TEST_F(FileReplacementTest, AForkedChildNeitherKeepsALockNorEndsIt) {
  const ScopedWaitHook hook([] { throw Timeout("locked"); }, std::chrono::milliseconds(0));
  fs::create_directories(folder_);
  std::optional<FileSetLock> lock(std::in_place, folder_, /*exclusive=*/true);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  pid_t child = ::fork();
  if (child == 0) {
    lock.reset();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_THROW(FileSetLock{folder_}, Timeout);

  child = ::fork();
  if (child == 0) {  // has the lock's descriptor until the test ends
    ::close(pipe[1]);
    char end = 0;
    ::_exit(static_cast<int>(::read(pipe[0], &end, 1)));
  }
  lock.reset();
  EXPECT_NO_THROW(FileSetLock{folder_});
  ::close(pipe[1]);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
}

TEST_F(FileReplacementTest, AFolderThatDoesNotExistIsNotLocked) {
  const FileSetLock lock(folder_ / "nowhere");
  EXPECT_FALSE(fs::exists(folder_ / "nowhere"));
}

}  // namespace
}  // namespace headrace
