#include "config/toml.h"

// Ordered tables: what is complained of first is the same in every run.
#define CPPTOML_USE_MAP
#include <cpptoml.h>

#include <sstream>

#include "base/text.h"
#include "config/toml_brackets.h"
#include "recsys/error.h"

namespace recsys {
namespace {

Toml Converted(const std::shared_ptr<cpptoml::base>& found);

Toml ConvertedTable(const cpptoml::table& found) {
  Toml made;
  for (const auto& [name, value] : found) made.table.emplace(name, Converted(value));
  return made;
}

template <typename Items>
Toml ConvertedItems(const Items& items) {
  Toml made;
  made.kind = Toml::Kind::kArray;
  for (const auto& item : items) made.items.push_back(Converted(item));
  return made;
}

Toml ConvertedValue(const std::shared_ptr<cpptoml::base>& found) {
  Toml made;
  if (const auto yes = found->as<bool>()) {
    made.kind = Toml::Kind::kYesNo;
    made.yes = yes->get();
  } else if (const auto whole = found->as<std::int64_t>()) {
    made.kind = Toml::Kind::kWhole;
    made.whole = whole->get();
  } else if (const auto number = found->as<double>()) {
    made.kind = Toml::Kind::kNumber;
    made.number = number->get();
  } else if (const auto text = found->as<std::string>()) {
    made.kind = Toml::Kind::kText;
    made.text = text->get();
  } else {
    std::ostringstream written;
    written << *found;
    made.kind = Toml::Kind::kOther;
    made.text = written.str();
  }
  return made;
}

Toml Converted(const std::shared_ptr<cpptoml::base>& found) {
  if (const auto table = found->as_table()) return ConvertedTable(*table);
  if (const auto array = found->as_array()) return ConvertedItems(array->get());
  if (const auto tables = found->as_table_array()) return ConvertedItems(tables->get());
  return ConvertedValue(found);
}

}  // namespace

std::string Toml::Str() const { return kind == Kind::kText ? text : Repr(); }

std::string Toml::Repr() const {
  std::string inner;
  switch (kind) {
    case Kind::kYesNo:
      return yes ? "True" : "False";
    case Kind::kWhole:
      return std::to_string(whole);
    case Kind::kNumber:
      return ReprFloat(number);
    case Kind::kText:
      return recsys::Repr(text);
    case Kind::kOther:
      return text;
    case Kind::kArray:
      for (const Toml& item : items) inner += (inner.empty() ? "" : ", ") + item.Repr();
      return "[" + inner + "]";
    case Kind::kTable:
      for (const auto& [name, value] : table) {
        inner += (inner.empty() ? "" : ", ") + recsys::Repr(name) + ": " + value.Repr();
      }
      return "{" + inner + "}";
  }
  return {};
}

Toml ParseToml(const std::string& text) {
  if (!IsUtf8(text)) throw Error(ErrorKind::kConfig, "it is not UTF-8");
  CheckBrackets(text);
  std::istringstream stream(text);
  try {
    return ConvertedTable(*cpptoml::parser(stream).parse());
  } catch (const cpptoml::parse_exception& error) {
    throw Error(ErrorKind::kConfig, error.what());
  } catch (const std::logic_error& error) {
    // What cpptoml does not foresee: std::out_of_range and the like.
    throw Error(ErrorKind::kConfig, std::string("it cannot be read: ") + error.what());
  }
}

}  // namespace recsys
