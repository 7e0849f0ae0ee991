#ifndef RECSYS_CLIENT_WIRE_WRITER_H_
#define RECSYS_CLIENT_WIRE_WRITER_H_

// The few pieces of protobuf's encoding that a request needs: varints and runs of bytes. What
// stands in a request is copied once, from the caller's memory to where it is sent from.

#include <cstdint>
#include <string>
#include <string_view>

namespace recsys::client {

/// Appends to `out`; seven bits a byte, the lowest first.
void PutVarint(std::uint64_t value, std::string* out);

/// A field of a varint; nothing for 0, protobuf's default.
void PutNumber(int field, std::uint64_t value, std::string* out);

/// The head of a field of `size` bytes, which the caller appends.
void PutHead(int field, std::size_t size, std::string* out);

/// A field of bytes; nothing where there are none.
void PutBytes(int field, std::string_view bytes, std::string* out);

/// How long PutBytes makes it.
std::size_t SizeOfBytes(int field, std::size_t size);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_WIRE_WRITER_H_
