#include "reader/shared_memory/arena/system_error.h"

#include <cerrno>

#include "gtest/gtest.h"

namespace headrace::shared_memory {
namespace {

TEST(SystemErrorTest, SaysWhichLimitIsReached) {
  EXPECT_EQ(SystemError(EMFILE),
            "Too many open files. The limit on file descriptors is reached: raise it (ulimit -n), or use fewer loaders "
            "or workers");
  EXPECT_NE(SystemError(ENFILE).find("fs.file-max"), std::string::npos);
  EXPECT_NE(SystemError(ENOMEM).find("ulimit -v"), std::string::npos);
}

TEST(SystemErrorTest, IsTheSystemsTextWhereNoLimitIsTheReason) {
  EXPECT_EQ(SystemError(EPERM), "Operation not permitted");
}

}  // namespace
}  // namespace headrace::shared_memory
