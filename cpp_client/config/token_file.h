#ifndef RECSYS_CONFIG_TOKEN_FILE_H_
#define RECSYS_CONFIG_TOKEN_FILE_H_

#include <string>

namespace recsys {

/// The token of a file, without the white space around it. `key`: the setting that names the file.
/// Throws Error (kConfig): it cannot be read, others than its owner and group may read or write it,
/// or it holds no token.
std::string ReadToken(const std::string& path, const std::string& key = "admin.token_file");

}  // namespace recsys

#endif  // RECSYS_CONFIG_TOKEN_FILE_H_
