# What Protocol Buffers need not compile for libheadrace.so: the parser of .proto files, JSON, and messages of their own.
# Without something that it does need, libheadrace.so does not link.
file(GLOB left_out src/google/protobuf/*.pb.cc src/google/protobuf/compiler/*.cc src/google/protobuf/util/*.cc
                   src/google/protobuf/util/internal/*.cc)
list(FILTER left_out EXCLUDE REGEX "/descriptor\\.pb\\.cc$")
set_source_files_properties(${left_out} PROPERTIES HEADER_FILE_ONLY ON)
