#include <gtest/gtest.h>

#include <string>

#include "base/hash/xxh64.h"

namespace recsys {
namespace {

TEST(Xxh64, HashesTextsAsPythonsPackageDoes) {
  EXPECT_EQ(Xxh64(""), 0xef46db3751d8e999);
  EXPECT_EQ(Xxh64("a"), 0xd24ec4f1a98c6e5b);
  EXPECT_EQ(Xxh64("abc"), 0x44bc2cf5ad770999);
  EXPECT_EQ(Xxh64("85f751fd"), 0xf9046e152e267f3d);
  EXPECT_EQ(Xxh64("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1);
  EXPECT_EQ(Xxh64("\xff\xfe"), 0x1d54d198e3108e1f);
}

TEST(Xxh64, HashesEveryLength) {
  // The numbers are Python's: xxhash.xxh64_intdigest(bytes(i * 7 % 256 for i in range(size))).
  constexpr std::uint64_t kDigests[] = {
      0xef46db3751d8e999, 0xe934a84adb052768, 0x2c1bc603fe31338c, 0x9ff70a635a6209ab,
      0xae5acdc00a55ac41, 0x8ad58ce18a6fd093, 0x2b549a1286e71e2,  0xd734a6b26f3da63e,
      0x87116b3365b924eb, 0x340667a92c4324ff, 0xef6fb3864413717a, 0x3a5d6dc1b218a5b6,
      0x14b8433b9a14e611, 0x92e7ac00fd9ce667, 0x8b3c6f96512c86a1, 0x2c53ab1e360882f,
      0xed1dd2fac0a31fbc, 0x758409c57cd5d0a2, 0x7a697a5dddf73a16, 0xb2dd740ff804f73d,
      0xc00910a628544d3,  0x93973a6f594ee443, 0xa4e95552e71d097c, 0x1fd64beef54adfa0,
      0x1094dc0a2bae4249, 0x286c3ee407db6975, 0xe59850ca013436dd, 0x32b3ba51e2553608,
      0xb4a63ee05a08aad6, 0xfaba96d0b1289e8,  0x97328f4c570f5da9, 0xf187c62b1e722b7,
      0x91b0cb0931a8c629, 0x931b043cf8d65b94, 0x996280a22ac00afc, 0x341520df4cf2059e,
      0xff889616afdd68c2, 0xf67f332bdd5b35b,  0x88cd9f80384e772c, 0x39c20d6f000a8ff7,
      0x6bc927279e6a3044, 0xac6ba3a12be49ba8, 0xc38bf2b9dd0692e9, 0xa6ef63bff7ff1ca6,
      0xa9af7c776b75ef86, 0x9364e111a6602f43, 0x84ef1eb63ab3f006, 0x980974feb2a7370d,
      0xccfe48bf9be8ccac, 0x8e5c24a79815dffc, 0x529003933e416ffc, 0x24f61bc2e636009d,
      0x1532d1763cdda9de, 0xe3fd1809e8254204, 0x8b9b9295f395bb49, 0xb65dd0948f54d9dc,
      0xd69230742bc51773, 0xc0165d55faaf71e6, 0x7beb34fbe087a5e5, 0x2224d45cb30cf4c7,
      0x4b31ee0dc1830ef0, 0x426e8fc56f7bf452, 0xbb91ef4fc154466f, 0x219110bf13e2fa26,
      0xbf3052e3445775d0, 0xed65e3510df3611d, 0xe86a13cc13e27b22, 0xf4aeba5d4ede41bc,
      0xdc26796598848c3,  0x90e88ea7811b6066, 0xebc4868c5053926e, 0xa076db31239c3ea4,
      0xc5e0687fe2b5bf5e, 0xb65183c243c4d68f, 0x5e39f46a726e901b, 0xa873f80de7738291,
      0x3ac394a87349264,  0xc4ce4e3ad65f6de0, 0xf1797abb796920ac, 0xe4e589158e6e0c1a};
  std::string bytes;
  for (const std::uint64_t digest : kDigests) {
    EXPECT_EQ(Xxh64(bytes), digest) << bytes.size();
    bytes += static_cast<char>(bytes.size() * 7 % 256);
  }
}

TEST(Xxh64, ReadsUnalignedBytesAndNoneBeyondTheEnd) {
  const std::string text(1000, 'x');
  const std::uint64_t digest = Xxh64(text.substr(0, 65));
  for (std::size_t start = 0; start < 16; ++start) {
    // An allocation of its own, at whose end the address sanitizer watches.
    const std::string shifted = text.substr(0, start + 65);
    EXPECT_EQ(Xxh64(std::string_view(shifted).substr(start)), digest) << start;
  }
  EXPECT_EQ(Xxh64(std::string(100'000, 'y')), 0xb51e4fd3d9b62fc8);
}

}  // namespace
}  // namespace recsys
