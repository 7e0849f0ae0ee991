#ifndef RECSYS_SERVER_MODELS_REPOSITORY_H_
#define RECSYS_SERVER_MODELS_REPOSITORY_H_

// Where models lie on the disk: a folder of models, each a folder of versions; or a single artifact
// (serve/repository.py).
//
//   root/<model>/<version>/       an artifact; the version is a whole number from 1
//   root/<model>/<version>.pt     the same as a single file
//   root/<model>/deltas/<file>    deltas of the model's versions
//
// Names come from operators and from the disk, and are trusted by nobody: what is no plain name, or
// leads out of the root by a symbolic link, is not there. A folder without a manifest is not there
// yet: recsys-export puts artifacts in their place whole, and who copies one by other means copies
// the manifest last.

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "server/models/files.h"

namespace recsys {

/// Where versions of models come from. Thread-safe; reads the disk, so it blocks. Throws
/// std::system_error where the disk cannot be read.
class ModelSource {
 public:
  virtual ~ModelSource() = default;
  /// The models, sorted.
  virtual std::vector<std::string> Names() = 0;
  /// A model's versions, the oldest first; none for a model that is not there.
  virtual std::vector<std::string> Versions(const std::string& name) = 0;
  /// The artifact. Throws Error (kModelNotFound).
  virtual std::string Path(const std::string& name, const std::string& version) = 0;
  /// A delta's file. Throws Error: kModelNotFound, or kRequest where the name is no plain file
  /// name.
  virtual std::string DeltaPath(const std::string& name, const std::string& file_name) = 0;
};

/// A folder of models.
class Repository : public ModelSource {
 public:
  /// `models`: those to serve; empty for all.
  explicit Repository(std::string root, const std::vector<std::string>& models = {});

  std::vector<std::string> Names() override;
  std::vector<std::string> Versions(const std::string& name) override;
  /// Where a version lies there as a folder and as a file, the folder counts.
  std::string Path(const std::string& name, const std::string& version) override;
  std::string DeltaPath(const std::string& name, const std::string& file_name) override;

 private:
  bool IsInside(const std::string& path, const std::string& what);
  /// Logs something once, although the repository is looked through again and again.
  void Tell(const std::string& text);

  const std::string root_;
  const std::set<std::string> models_;
  std::mutex mutex_;
  std::set<std::string> told_;
};

/// One artifact as a repository of one model with one version. Deltas lie beside it, in
/// `<artifact>.deltas`.
class SingleArtifact : public ModelSource {
 public:
  /// `name` and `version`: of the artifact's manifest, its name and digest (DescribeArtifact).
  SingleArtifact(std::string path, std::string name, std::string version);

  std::vector<std::string> Names() override;
  std::vector<std::string> Versions(const std::string& name) override;
  std::string Path(const std::string& name, const std::string& version) override;
  std::string DeltaPath(const std::string& name, const std::string& file_name) override;

  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }

 private:
  const std::string path_;
  const std::string name_;
  const std::string version_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_REPOSITORY_H_
