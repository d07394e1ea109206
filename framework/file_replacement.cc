#include "framework/file_replacement.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <system_error>
#include <thread>

#include "framework/errors.h"
#include "framework/wait_hook.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUnfinished = ".unfinished";
constexpr std::string_view kUnfinishedOfSet = ".unfinished-of-set";
constexpr std::string_view kSetNote = ".unfinished-set";

template <typename... Args>
[[noreturn]] void ThrowErrno(const Args&... args) {
  const int error = errno;
  Throw<IoError>(args..., ": ", std::system_category().message(error));
}

fs::path FolderOf(const fs::path& path) {
  const fs::path folder = path.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// Brings to the disk which files a folder has.
void SyncFolder(const fs::path& folder) {
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) {
    ThrowErrno("cannot open the folder '", folder.string(), "'");
  }
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != EROFS) {  // some file systems have none
    ThrowErrno("bringing the folder '", folder.string(), "' to the disk failed");
  }
}

// Whether `fd` is still the file of that name.
bool IsNamed(int fd, const fs::path& path) {
  struct stat mine{};
  struct stat named{};
  return ::fstat(fd, &mine) == 0 && ::lstat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
         mine.st_dev == named.st_dev;
}

bool IsLockMissing(int error) { return error != EWOULDBLOCK && error != EINTR; }

bool LeadsOut(const fs::path& name) {
  return name.empty() || name.is_absolute() || !name.has_filename() ||
         std::any_of(name.begin(), name.end(), [](const fs::path& part) { return part == ".." || part == "."; });
}

fs::path UnfinishedName(const fs::path& path, std::string_view suffix) {
  return FolderOf(path) / StrCat(".", path.filename().string(), suffix);
}

// Does what the note of a set says, as far as it has not been done. The folder is locked.
void CompleteSet(const fs::path& folder) {
  const fs::path note = folder / kSetNote;
  std::ifstream file(note, std::ios::binary);
  if (!file.is_open()) {
    HR_ENFORCE(!fs::exists(note), IoError, "cannot read '", note.string(), "'");
    return;
  }
  const std::string names((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::set<fs::path> folders;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = names.find('\0', begin);
    const fs::path name = names.substr(begin, end - begin);
    HR_ENFORCE(end != std::string::npos && !LeadsOut(name), DataLoss, "'", note.string(), "' is damaged");
    begin = end + 1;
    const fs::path path = folder / name;
    if (::rename(UnfinishedName(path, kUnfinishedOfSet).c_str(), path.c_str()) != 0 && errno != ENOENT) {
      ThrowErrno("files in '", folder.string(), "' are being replaced, but '", path.string(), "' cannot be");
    }
    folders.insert(FolderOf(path));
  }
  std::for_each(folders.begin(), folders.end(), SyncFolder);
  if (::unlink(note.c_str()) != 0) {
    ThrowErrno("cannot remove '", note.string(), "'");
  }
  SyncFolder(folder);
}

}  // namespace

FileDescriptor::~FileDescriptor() { Reset(); }

void FileDescriptor::Reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = fd;
}

void MakeFolders(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) {
    return;
  }
  HR_ENFORCE(!fs::exists(folder, error), IoError, "'", folder.string(), "' is not a folder");
  MakeFolders(folder.parent_path());
  fs::create_directory(folder, error);
  HR_ENFORCE(!error && fs::is_directory(folder, error), IoError, "cannot make the folder '", folder.string(), "'",
             error ? StrCat(": ", error.message()) : std::string());
  SyncFolder(FolderOf(folder));
}

FileReplacement::FileReplacement(fs::path path) : FileReplacement(std::move(path), kUnfinished) {}

FileReplacement::FileReplacement(fs::path path, std::string_view suffix) : path_(std::move(path)) {
  HR_ENFORCE(path_.has_filename(), IoError, "'", path_.string(), "' is not the name of a file");
  MakeFolders(path_.parent_path());
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  HR_ENFORCE(!fs::exists(status) || fs::is_regular_file(status), IoError, "'", path_.string(),
             "' is there, and is not a file");
  const fs::path name = UnfinishedName(path_, suffix);
  fs::path unfinished = name;
  for (int number = 1; !Open(unfinished); ++number) {
    unfinished = StrCat(name.string(), "-", number);
  }
}

// Makes or takes over the file; false if another is writing it.
bool FileReplacement::Open(const fs::path& unfinished) {
  for (;;) {
    fd_.Reset(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (fd_.get() < 0) {
      ThrowErrno("cannot open '", unfinished.string(), "' for writing");
    }
    unfinished_ = unfinished;
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      const bool is_missing = IsLockMissing(errno);
      fd_.Reset();
      if (!is_missing) {
        unfinished_.clear();
        return false;
      }
      // Without locks, a name that nobody else has.
      unfinished_ += StrCat("-", std::random_device()(), std::random_device()());
      fd_.Reset(::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (fd_.get() < 0) {
        ThrowErrno("cannot open '", std::exchange(unfinished_, {}).string(), "' for writing");
      }
      return true;
    }
    if (IsNamed(fd_.get(), unfinished)) {  // else the other has renamed it by now
      break;
    }
  }
  if (::ftruncate(fd_.get(), 0) != 0) {
    ThrowErrno("cannot empty '", unfinished.string(), "'");
  }
  return true;
}

FileReplacement::~FileReplacement() {
  if (!unfinished_.empty()) {
    ::unlink(unfinished_.c_str());  // locked, so it is this one
  }
}

void FileReplacement::Write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_.get(), from, bytes);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      ThrowErrno("writing '", path_.string(), "' failed");
    }
    from += written;
    bytes -= static_cast<size_t>(written);
  }
}

void FileReplacement::Sync() {
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) {
    ThrowErrno("bringing '", path_.string(), "' to the disk failed");
  }
}

void FileReplacement::Commit() {
  Sync();
  if (::rename(unfinished_.c_str(), path_.c_str()) != 0) {
    ThrowErrno("cannot rename '", unfinished_.string(), "' to '", path_.string(), "'");
  }
  unfinished_.clear();
  SyncFolder(FolderOf(path_));
}

FileSetLock::FileSetLock(fs::path folder, bool exclusive)
    : folder_(std::move(folder)), owner_(::getpid()), fd_(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_.get() < 0) {
    return;  // whoever opens a file in it says why
  }
  Lock(exclusive);
  while (fs::exists(folder_ / kSetNote)) {
    Lock(true);
    CompleteSet(folder_);
    Lock(exclusive);
  }
}

FileSetLock::~FileSetLock() {
  if (::getpid() == owner_) {  // a child that was forked meanwhile has the same lock: closing it does not end it
    ::flock(fd_.get(), LOCK_UN);
  }
}

void FileSetLock::Lock(bool exclusive) {
  while (::flock(fd_.get(), (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0 && !IsLockMissing(errno)) {
    ScopedWaitHook::CallIfDue();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

FileSetReplacement::FileSetReplacement(fs::path folder)
    : folder_(Made(folder.empty() ? fs::path(".") : std::move(folder))), lock_(folder_, /*exclusive=*/true) {}

fs::path FileSetReplacement::Made(fs::path folder) {
  MakeFolders(folder);
  return folder;
}

FileReplacement& FileSetReplacement::Add(const std::string& name) {
  HR_ENFORCE(!LeadsOut(name) && name.find('\0') == std::string::npos, InvalidArgument, "'", name,
             "' is not the name of a file within '", folder_.string(), "'");
  HR_ENFORCE(fs::path(name).filename() != kSetNote, InvalidArgument, "'", name,
             "' is reserved for the marker of a set of files that is being saved");
  files_.push_back(std::unique_ptr<FileReplacement>(new FileReplacement(folder_ / name, kUnfinishedOfSet)));
  names_ += name;
  names_ += '\0';
  return *files_.back();
}

void FileSetReplacement::Commit() {
  std::set<fs::path> folders;
  for (const auto& file : files_) {
    file->Sync();
    folders.insert(FolderOf(file->path_));
    const fs::path noted = UnfinishedName(file->path_, kUnfinishedOfSet);
    if (file->unfinished_ != noted) {  // the folder cannot be locked, and others have been at work
      if (::rename(file->unfinished_.c_str(), noted.c_str()) != 0) {
        ThrowErrno("cannot rename '", file->unfinished_.string(), "' to '", noted.string(), "'");
      }
      file->unfinished_ = noted;
    }
  }
  std::for_each(folders.begin(), folders.end(), SyncFolder);
  FileReplacement note(folder_ / kSetNote);
  note.Write(names_);
  note.Commit();
  for (const auto& file : files_) {
    file->unfinished_.clear();  // from now on it will be renamed, by this process or another
  }
  CompleteSet(folder_);
}

}  // namespace headrace
