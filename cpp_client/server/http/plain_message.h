#ifndef RECSYS_SERVER_HTTP_PLAIN_MESSAGE_H_
#define RECSYS_SERVER_HTTP_PLAIN_MESSAGE_H_

#include <string>

namespace google::protobuf {
class Message;
}

namespace recsys {

/// A message as a JSON object: every field by its name (also those that hold their default), whole
/// numbers as numbers, constants by name (serve/rest_json.py, plain).
void AppendPlainMessage(const google::protobuf::Message& message, std::string* json);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_PLAIN_MESSAGE_H_
