// Files that are replaced as a whole, or not at all: a reader finds the old contents or all that has been
// written, also after a crash and after the power has failed.
//
//   FileReplacement file(path);
//   file.Write(data, bytes);
//   file.Commit();
//
// Writes go to an unfinished file in the same folder, ".<name>.unfinished", which Commit brings to the disk
// and renames; then it brings the folder to the disk. An unfinished file is locked by its writer: others that
// write the same file at the same time take further names, and the last Commit wins. A file that a dead process has
// left is written over by the next one.
//
// A FileSetReplacement replaces several files of a folder together. When all are on the disk, it notes down in the file
// ".unfinished-set" the renames, and removes that file once they are done; if it dies in between, the next one that
// opens the folder by a FileSetLock or a FileSetReplacement does the rest. Those take turns by a lock on the folder
// (flock(2), where the file system has it), so that a reader never finds files of two sets.
//
// Thread-safety: none, but any number of objects, in any number of threads and processes, may be at work on a file.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/export.h"

namespace headrace {

// Makes a folder, and those around it, so that they are there after the power has failed. Throws IoError.
HEADRACE_API void MakeFolders(const std::filesystem::path& folder);

// A file descriptor, which it closes. -1: none.
class HEADRACE_API FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  // Closes the one that it has.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

class HEADRACE_API FileReplacement {
 public:
  // Makes the folders of `path` as they are needed. Throws IoError, also if there is something that is not a file.
  explicit FileReplacement(std::filesystem::path path);
  // Without Commit, leaves the old contents.
  ~FileReplacement();
  FileReplacement(const FileReplacement&) = delete;
  FileReplacement& operator=(const FileReplacement&) = delete;

  // These throw IoError; after one, nothing but the destructor may be called.
  void Write(const void* data, size_t bytes);
  void Write(std::string_view bytes) { Write(bytes.data(), bytes.size()); }
  void Commit();

  const std::filesystem::path& path() const { return path_; }

 private:
  friend class FileSetReplacement;
  FileReplacement(std::filesystem::path path, std::string_view suffix);

  bool Open(const std::filesystem::path& unfinished);
  void Sync();

  const std::filesystem::path path_;
  std::filesystem::path unfinished_;  // empty: there is none any more
  FileDescriptor fd_;
};

// Keeps the files of a folder unchanged while it lives: no set is committed there. While an exclusive one lives, there
// is no other. If a set has been left half renamed, it completes that first. Throws IoError if it cannot. A folder that
// does not exist is not locked.
class HEADRACE_API FileSetLock {
 public:
  explicit FileSetLock(std::filesystem::path folder, bool exclusive = false);
  ~FileSetLock();
  FileSetLock(const FileSetLock&) = delete;
  FileSetLock& operator=(const FileSetLock&) = delete;

 private:
  void Lock(bool exclusive);

  const std::filesystem::path folder_;
  const pid_t owner_;
  FileDescriptor fd_;
};

class HEADRACE_API FileSetReplacement {
 public:
  // Creates the folder, and waits until no other process works on a set there. Throws IoError.
  explicit FileSetReplacement(std::filesystem::path folder);

  // One more file, by its path within the folder. Throws InvalidArgument if that leads out of it, IoError as
  // FileReplacement does.
  FileReplacement& Add(const std::string& name);

  // Replaces all. Throws IoError; then either all or none are replaced once the folder is opened again.
  void Commit();

 private:
  static std::filesystem::path Made(std::filesystem::path folder);

  const std::filesystem::path folder_;
  const FileSetLock lock_;
  std::string names_;  // each with a zero behind it
  std::vector<std::unique_ptr<FileReplacement>> files_;
};

}  // namespace headrace
