// What is in a repository: versions that are whole, names that are plain, nothing outside.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "server/models/repository.h"
#include "tests/models/world.h"

namespace recsys {
namespace {

using Names = std::vector<std::string>;
namespace fs = std::filesystem;

const std::vector<std::string> kBadNames = {"",
                                            ".",
                                            "..",
                                            "../1",
                                            "1/..",
                                            "/etc/passwd",
                                            "a/b",
                                            "a\\b",
                                            ".hidden",
                                            std::string(129, 'x'),
                                            std::string("a\0b", 3)};

/// Two models.
class RepositoryTest : public testing::Test {
 protected:
  RepositoryTest() : root_(folder_.path() + "/models"), repository_(root_) {
    for (const char* version : {"1", "2", "10"}) AddVersion(root_, "small", version, 1);
    AddVersion(root_, "other-1.0_x", "3", 1);
  }

  std::string In(const std::string& name) const { return root_ + "/" + name; }

  TempFolder folder_;
  HeardLog log_;
  std::string root_;
  Repository repository_;
};

TEST_F(RepositoryTest, ModelsAreSortedAndVersionsAscendByNumber) {
  EXPECT_EQ(repository_.Names(), (Names{"other-1.0_x", "small"}));
  EXPECT_EQ(repository_.Versions("small"), (Names{"1", "2", "10"}));
  EXPECT_EQ(repository_.Path("small", "10"), In("small/10"));
  EXPECT_EQ(repository_.Versions("nothing"), Names{});
}

TEST_F(RepositoryTest, OnlyTheModelsAskedForAreThere) {
  EXPECT_EQ(Repository(root_, {"small", "missing"}).Names(), Names{"small"});
}

TEST_F(RepositoryTest, ASingleFileIsAVersionTooAndAFolderCountsBeforeIt) {
  WriteFile(In("small/12.pt"), "");
  EXPECT_EQ(repository_.Versions("small").back(), "12");
  EXPECT_EQ(repository_.Path("small", "12"), In("small/12.pt"));
  WriteFile(In("small/10.pt"), "");
  EXPECT_EQ(repository_.Versions("small"), (Names{"1", "2", "10", "12"}));
  EXPECT_EQ(repository_.Path("small", "10"), In("small/10"));
}

TEST_F(RepositoryTest, AVersionWithoutItsManifestIsNotThereYet) {
  WriteFile(In("small/11/rows.bin"), "rows");
  EXPECT_EQ(repository_.Versions("small"), (Names{"1", "2", "10"}));
  EXPECT_EQ(ErrorText(ErrorKind::kModelNotFound, [&] { repository_.Path("small", "11"); }),
            "version: got '11' of model 'small', expected one that lies in the repository");
  WriteFile(In("small/11/manifest.json"), "{}");
  EXPECT_EQ(repository_.Versions("small").back(), "11");
}

TEST_F(RepositoryTest, WhatIsNoVersionIsPassedOverAndSaidOnce) {
  for (const std::string& name :
       {std::string("0"), std::string("01"), std::string("-1"), std::string("1.5"),
        std::string("latest"), std::string("١"), std::string(19, '9'), std::string("1 ")}) {
    WriteFile(In("small/" + name + "/manifest.json"), "{}");
    const int before = log_.Count("versions are whole numbers from 1");
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(repository_.Versions("small"), (Names{"1", "2", "10"})) << name;
    }
    EXPECT_EQ(log_.Count("versions are whole numbers from 1"), before + 1) << name;
    ErrorText(ErrorKind::kModelNotFound, [&] { repository_.Path("small", name); });
  }
}

TEST_F(RepositoryTest, WhatIsNoModelsNameIsPassedOverAndSaid) {
  for (const std::string& name :
       {std::string("with space"), std::string("ümlaut"), std::string("-dash"),
        std::string(129, 'x'), std::string("semi;colon")}) {
    fs::create_directory(In(name));
    const int before = log_.Count("is passed over");
    EXPECT_EQ(repository_.Names(), (Names{"other-1.0_x", "small"})) << name;
    EXPECT_EQ(log_.Count("is passed over"), before + 1) << name;
    EXPECT_EQ(repository_.Versions(name), Names{}) << name;
  }
  EXPECT_EQ(log_.Count("repository: 'ümlaut' is passed over: a model's name has letters, digits "
                       "and _ - ."),
            1);
}

TEST_F(RepositoryTest, HiddenFoldersAndFilesAreNoModels) {
  fs::create_directory(In(".scratch"));
  WriteFile(In("README"), "");
  fs::create_directory(In("small/.10.partial"));
  fs::create_directory(In("small/deltas"));
  EXPECT_EQ(repository_.Names(), (Names{"other-1.0_x", "small"}));
  EXPECT_EQ(repository_.Versions("small"), (Names{"1", "2", "10"}));
  EXPECT_EQ(log_.Count(""), 0);
}

TEST_F(RepositoryTest, LinksOutOfTheRootAreRefusedAndLinksWithinAreNot) {
  const std::string outside = AddVersion(folder_.path() + "/elsewhere", "secret", "1", 1);
  fs::create_symlink(folder_.path() + "/elsewhere/secret", In("stolen"));
  fs::create_symlink(outside, In("small/11"));
  fs::create_symlink(In("small/2"), In("small/12"));
  fs::create_symlink("13", In("small/13"));
  EXPECT_EQ(repository_.Names(), (Names{"other-1.0_x", "small"}));
  EXPECT_EQ(repository_.Versions("stolen"), Names{});
  EXPECT_EQ(repository_.Versions("small"), (Names{"1", "2", "10", "12"}));
  ErrorText(ErrorKind::kModelNotFound, [&] { repository_.Path("small", "11"); });
  EXPECT_EQ(log_.Count("small/11 is passed over: it leads out of the repository"), 1);
}

TEST_F(RepositoryTest, AFolderWhoseNameOnlyBeginsLikeTheRootsIsOutside) {
  AddVersion(root_ + "-secret", "m", "1", 1);
  fs::create_symlink(root_ + "-secret/m", In("stolen"));
  EXPECT_EQ(repository_.Names(), (Names{"other-1.0_x", "small"}));
}

TEST_F(RepositoryTest, TheRootItselfMayBeALink) {
  const std::string link = folder_.path() + "/link";
  fs::create_symlink(root_, link);
  EXPECT_EQ(Repository(link).Versions("small"), (Names{"1", "2", "10"}));
}

TEST_F(RepositoryTest, ARootThatCannotBeReadIsAnErrorAsPythonWritesIt) {
  try {
    Repository("/no/such/folder").Names();
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_STREQ(error.what(), "[Errno 2] No such file or directory: '/no/such/folder'");
    EXPECT_STREQ(OsErrorName(error.code()), "FileNotFoundError");
  }
}

TEST_F(RepositoryTest, NamesFromOutsideLeadNowhere) {
  for (const std::string& name : kBadNames) {
    EXPECT_EQ(repository_.Versions(name), Names{}) << name;
    ErrorText(ErrorKind::kModelNotFound, [&] { repository_.Path(name, "1"); });
    ErrorText(ErrorKind::kModelNotFound, [&] { repository_.Path("small", name); });
    ErrorText(ErrorKind::kModelNotFound, [&] { repository_.DeltaPath(name, "a.delta"); });
    EXPECT_NE(ErrorText(ErrorKind::kRequest, [&] { repository_.DeltaPath("small", name); })
                  .find("expected the name of a file, without folders"),
              std::string::npos);
  }
}

/// What holds for deltas of every source.
void ExpectDeltas(ModelSource& source, const std::string& name, const std::string& folder) {
  WriteFile(folder + "/1.delta", "");
  WriteFile(folder + ".secret", "");
  fs::create_symlink(folder + ".secret", folder + "/out");
  fs::create_directory(folder + "/within");
  EXPECT_EQ(source.DeltaPath(name, "1.delta"), folder + "/1.delta");
  for (const std::string missing : {"2.delta", "within"}) {
    EXPECT_EQ(ErrorText(ErrorKind::kModelNotFound, [&] { source.DeltaPath(name, missing); }),
              "delta: got '" + missing + "', expected a file in the model's folder 'deltas'");
  }
  ErrorText(ErrorKind::kRequest, [&] { source.DeltaPath(name, "../deltas/1.delta"); });
}

TEST_F(RepositoryTest, DeltasLieInTheModelsFolder) {
  ExpectDeltas(repository_, "small", In("small/deltas"));
  WriteFile(folder_.path() + "/secret", "");
  fs::create_symlink(folder_.path() + "/secret", In("small/deltas/far"));
  ErrorText(ErrorKind::kModelNotFound, [&] { repository_.DeltaPath("small", "far"); });
}

TEST_F(RepositoryTest, ASingleArtifactIsOneModelWithDeltasBesideIt) {
  SingleArtifact source(In("small/1"), "named", "abc");
  EXPECT_EQ(source.Names(), Names{"named"});
  EXPECT_EQ(source.Versions("named"), Names{"abc"});
  EXPECT_EQ(source.Versions("other"), Names{});
  EXPECT_EQ(source.Path("named", "abc"), In("small/1"));
  EXPECT_EQ(ErrorText(ErrorKind::kModelNotFound, [&] { source.Path("named", "1"); }),
            "version: got '1' of model 'named', expected 'abc' of 'named'");
  ExpectDeltas(source, "named", In("small/1.deltas"));
  ErrorText(ErrorKind::kModelNotFound, [&] { source.DeltaPath("named", "out"); });
  EXPECT_EQ(ErrorText(ErrorKind::kModelNotFound, [&] { source.DeltaPath("other", "1.delta"); }),
            "model: got 'other', expected 'named'");
}

TEST_F(RepositoryTest, FingerprintsChangeWithTheFiles) {
  const std::string path = In("small/1");
  WriteFile(path + "/rows.bin", "rows");
  const Fingerprint before = FingerprintOf(path);
  EXPECT_EQ(before.size(), 2U);
  EXPECT_TRUE(FingerprintOf(path) == before);
  WriteFile(path + "/new.bin", "rows");
  fs::rename(path + "/new.bin", path + "/rows.bin");
  EXPECT_FALSE(FingerprintOf(path) == before);
  EXPECT_TRUE(FingerprintOf(path + "/nothing").empty());
  EXPECT_FALSE(FingerprintOf(path + "/rows.bin").empty());
}

}  // namespace
}  // namespace recsys
