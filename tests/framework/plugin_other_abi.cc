// What HEADRACE_REGISTER_OP refers to in a library that was built with the headers of another version.
extern "C" void headrace_op_library_abi_0();

namespace {

[[maybe_unused]] const bool kRegistered = [] {
  headrace_op_library_abi_0();
  return true;
}();

}  // namespace
