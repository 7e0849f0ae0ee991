#ifndef RECSYS_SERVER_OBSERVE_RELEASE_H_
#define RECSYS_SERVER_OBSERVE_RELEASE_H_

namespace recsys {

/// The project's release, as its package's metadata have it.
inline constexpr const char* kRelease = "0.1.0";

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_RELEASE_H_
