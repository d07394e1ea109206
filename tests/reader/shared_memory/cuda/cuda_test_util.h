// Tests of what is done for CUDA, with a stand-in for its driver.
#pragma once

#include <dlfcn.h>

#include <cstddef>

#include "cuda_stub.h"
#include "gtest/gtest.h"

namespace headrace::shared_memory {

class CudaTest : public ::testing::Test {
 protected:
  // Once `library` is loaded, dlopen gives it to all that ask for the name under which it was built.
  explicit CudaTest(const char* library = CUDA_STUB) : library_(library) {}

  void SetUp() override {
    void* library = dlopen(library_, RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    auto* find = reinterpret_cast<CudaStub* (*)()>(dlsym(library, "cuda_stub"));
    ASSERT_NE(find, nullptr);
    stub_ = find();
  }
  void TearDown() override {
    EXPECT_EQ(stub_->registered_bytes, 0U) << "everything is unlocked in the end";
    EXPECT_EQ(stub_->retained, 0);
    EXPECT_EQ(stub_->depth, 0);
    EXPECT_EQ(stub_->events, 0);
    EXPECT_EQ(stub_->torn_away, 0);
  }

  // As a program that copies to a device has done.
  void UseDevice() {
    stub_->inits = 1;
    stub_->current = &context_;
  }

  const char* const library_;
  int context_ = 0;
  CudaStub* stub_ = nullptr;
};

}  // namespace headrace::shared_memory
