#include "model/artifact_files.h"

#include <caffe2/serialize/inline_container.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/text.h"
#include "format/file_name.h"
#include "format/json/checked_json.h"
#include "format/zip_directory.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr char kManifestName[] = "manifest.json";
constexpr char kExpected[] = "expected a folder or file that recsys-export wrote";

/// A file that is mapped for reading as long as this object lives.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw ZipError("cannot be read");
    struct stat found {};
    if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0) {
      size_ = static_cast<std::size_t>(found.st_size);
      pages_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (pages_ == MAP_FAILED) throw ZipError("cannot be read");
  }
  ~MappedFile() { munmap(pages_, size_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view view() const { return {static_cast<const char*>(pages_), size_}; }

 private:
  void* pages_ = MAP_FAILED;
  std::size_t size_ = 0;
};

/// Reads members; deflated ones through torch's reader, which does not check checksums.
class ZipFile {
 public:
  explicit ZipFile(const std::string& path)
      : path_(path), file_(path), members_(ZipMembers(file_.view())) {}

  const std::vector<ZipMember>& members() const { return members_; }

  /// Returns a member's data; throws ZipError if it does not match its checksum.
  std::string Contents(const ZipMember& member) {
    std::string data;
    if (member.method == 0) {
      data = StoredBytes(file_.view(), member);
    } else {
      data = Inflated(member);
    }
    if (Crc32(data) != member.crc32) throw ZipError("damaged");
    return data;
  }

  /// Whether a member matches its checksum.
  bool IsSound(const ZipMember& member) {
    try {
      if (member.method == 0) return Crc32(StoredBytes(file_.view(), member)) == member.crc32;
      Contents(member);
      return true;
    } catch (const ZipError&) {
      return false;
    }
  }

 private:
  std::string Inflated(const ZipMember& member) {
    // torch's reader does not look at the member's own header.
    StoredBytes(file_.view(), member);
    try {
      if (!reader_) reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path_);
      // torch's reader names members relative to the top-level folder.
      const auto found = reader_->getRecord(member.name.substr(member.name.find('/') + 1));
      return {static_cast<const char*>(std::get<0>(found).get()), std::get<1>(found)};
    } catch (const std::exception&) {
      throw ZipError("damaged");
    }
  }

  std::string path_;
  MappedFile file_;
  std::vector<ZipMember> members_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// Returns an extra file of a TorchScript file; nothing if it has none of this name, or several.
/// Throws ZipError.
std::optional<std::string> FindExtraFile(const std::string& path, const std::string& name) {
  ZipFile file(path);
  std::vector<const ZipMember*> found;
  for (const ZipMember& member : file.members()) {
    if (EndsWith(member.name, "/extra/" + name)) found.push_back(&member);
  }
  if (found.size() != 1) return std::nullopt;
  return file.Contents(*found[0]);
}

std::string ManifestOfFile(const std::string& path) {
  const std::string name = Repr(NameOfPath(path));
  try {
    const std::optional<std::string> found = FindExtraFile(path, kManifestName);
    if (found) return *found;
  } catch (const ZipError&) {
    throw Error(ErrorKind::kForeignFile,
                "artifact: got " + name + ", which is of another kind, or damaged (BadZipFile); " +
                    kExpected);
  }
  throw Error(ErrorKind::kForeignFile,
              "artifact: got " + name + ", which holds no manifest; " + kExpected +
                  " (a checkpoint is exported first: recsys-export CHECKPOINT)");
}

int NumCudaDevices() {
  return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
}

std::vector<std::string> DevicesHere() {
  std::vector<std::string> devices = {"cpu"};
  for (int i = 0; i < NumCudaDevices(); ++i) devices.push_back("cuda:" + std::to_string(i));
  return devices;
}

std::vector<std::string> LackingDevices(const Target& target) {
  const int num_devices = NumCudaDevices();
  std::vector<std::string> lacking;
  for (const Device& device : target.devices) {
    if (device.type == "cuda" && device.index >= num_devices) lacking.push_back(device.name());
  }
  return lacking;
}

}  // namespace

bool IsArtifactFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::string FileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(ErrorKind::kMissingPart, "part " + Repr(NameOfPath(path)) + ": cannot be read");
  }
  file.seekg(0, std::ios::end);
  std::string bytes(static_cast<std::size_t>(std::max<std::streamoff>(file.tellg(), 0)), '\0');
  file.seekg(0);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    throw Error(ErrorKind::kMissingPart, "part " + Repr(NameOfPath(path)) + ": cannot be read");
  }
  return bytes;
}

std::string ExtraFile(const std::string& path, const std::string& name) {
  try {
    const std::optional<std::string> found = FindExtraFile(path, name);
    if (found) return *found;
  } catch (const ZipError&) {
    throw ChangedPart(name);
  }
  throw Error(ErrorKind::kMissingPart, "part " + Repr(name) + ": missing");
}

Manifest ManifestAt(const std::string& path) {
  const std::string name = Repr(NameOfPath(path));
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw Error(ErrorKind::kArtifactNotFound,
                "artifact: got " + name + ", which does not exist; " + kExpected);
  }
  if (!IsArtifactFolder(path)) return ReadManifest(ManifestOfFile(path));
  const std::string file = path + "/" + kManifestName;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    throw Error(ErrorKind::kForeignFile,
                "artifact: got the folder " + name + " without " + kManifestName + "; " +
                    kExpected + " (the models of a folder: recsys-serve --repository)");
  }
  return ReadManifest(FileBytes(file));
}

void CheckPartSize(const std::string& file, std::int64_t size_bytes) {
  const std::string part = "part " + Repr(NameOfPath(file)) + ": ";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    throw Error(ErrorKind::kMissingPart, part + "missing");
  }
  const std::uintmax_t found = std::filesystem::file_size(file, error);
  if (error || found != static_cast<std::uintmax_t>(size_bytes)) {
    throw Error(ErrorKind::kPartSize, part + "got " + std::to_string(error ? 0 : found) +
                                          " bytes, expected " + std::to_string(size_bytes));
  }
}

Error ChangedPart(const std::string& name) {
  return {ErrorKind::kChecksum,
          "part " + Repr(name) + ": its checksum does not match; it was changed or damaged"};
}

void CheckAllSizes(const std::string& path, const Manifest& manifest) {
  if (!IsArtifactFolder(path)) return;
  for (const Part& part : manifest.skeletons)
    CheckPartSize(path + "/" + part.path, part.size_bytes);
  if (manifest.rows_path) CheckPartSize(path + "/" + *manifest.rows_path, manifest.rows_bytes);
}

const Target& ChooseTarget(const Manifest& manifest, const std::string& wanted) {
  std::vector<std::string> names;
  for (const Target& target : manifest.targets) names.push_back(target.name);
  if (!wanted.empty() && std::find(names.begin(), names.end(), wanted) == names.end()) {
    throw Error(ErrorKind::kTarget,
                "target: got " + Repr(wanted) + ", expected one of " + Listed(names));
  }
  for (const Target& target : manifest.targets) {
    if (!wanted.empty() && wanted != target.name) continue;
    const std::vector<std::string> lacking = LackingDevices(target);
    if (lacking.empty()) return target;
    if (!wanted.empty()) {
      throw Error(ErrorKind::kTarget, "target: " + Repr(wanted) + " needs " + Listed(lacking) +
                                          ", which this machine lacks");
    }
  }
  throw Error(ErrorKind::kTarget, "target: got " + Listed(names) +
                                      ", expected one whose devices this machine has: " +
                                      Listed(DevicesHere()) + "; recsys-export --target makes one");
}

void CheckMembers(const std::string& path, std::int64_t unread_bytes) {
  const std::string name = NameOfPath(path);
  std::string damaged;
  try {
    ZipFile file(path);
    for (const ZipMember& member : file.members()) {
      if (unread_bytes >= 0 && member.num_bytes == static_cast<std::uint64_t>(unread_bytes))
        continue;
      if (file.IsSound(member)) continue;
      damaged = member.name.substr(member.name.find('/') + 1);
      break;
    }
  } catch (const ZipError&) {
    throw Error(ErrorKind::kForeignFile,
                "artifact: got " + Repr(name) +
                    ", which is of another kind, or damaged (BadZipFile); " + kExpected);
  }
  if (damaged.empty()) return;
  throw Error(ErrorKind::kChecksum,
              "part " + Repr(damaged) + " of " + Repr(name) + ": its checksum does not match");
}

}  // namespace recsys
