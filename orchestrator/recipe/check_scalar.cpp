// One value against its type. The recipe's text is taken as written, so these functions decide what `no`, `1e6`,
// `0777` or `1:30` are: mostly an error that says what to write instead, because other YAML readers disagree on them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>
#include <string>

#include "orchestrator/recipe/check.h"
#include "orchestrator/recipe/placeholders.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

constexpr size_t kMaxText = 4096;

std::string quoted(std::string_view text) {
  return "`" + one_line(text, 80) + "`";
}

bool matches(std::string_view text, const std::regex& pattern) {
  return text.size() <= kMaxText && std::regex_match(text.begin(), text.end(), pattern);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

/// What a YAML 1.1 reader makes of a plain scalar when that is not the text itself; "" when it is the text.
std::string yaml_surprise(std::string_view text) {
  static const std::regex decimal("[-+]?(0|[1-9][0-9]*)"), octal("[-+]?0[0-7_]+"), hex("[-+]?0[xb][0-9a-fA-F_]+"),
      grouped("[-+]?[0-9][0-9_]*"), sexagesimal("[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\\.[0-9_]*)?"),
      real("[-+]?(\\.[0-9]+|[0-9][0-9_]*(\\.[0-9_]*)?)([eE][-+]?[0-9]+)?"), special("[-+]?\\.(inf|nan)"),
      date("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*");
  const std::string word = lower(text);
  if (word == "yes" || word == "on" || word == "y" || word == "true") return "true";
  if (word == "no" || word == "off" || word == "n" || word == "false") return "false";
  if (word == "null" || word == "~") return "nothing";
  if (text.size() > 64) return "";
  if (matches(text, decimal)) return "a number";
  if (matches(text, octal)) return "an octal number";
  if (matches(text, sexagesimal)) return "a number to the base of 60";
  if (matches(text, hex) || matches(text, grouped) || matches(text, real) || matches(word, special)) return "a number";
  if (matches(text, date)) return "a date";
  return "";
}

bool is_plain_integer(std::string_view text) {
  static const std::regex pattern("-?(0|[1-9][0-9]*)");
  return matches(text, pattern);
}

std::string bounds_text(const Field& field) {
  const auto show = [&](double bound) {
    const auto whole = static_cast<int64_t>(bound);
    switch (field.type) {
      case FieldType::bytes:
        return format_bytes(whole);
      case FieldType::bandwidth:
        return format_bandwidth(bound);
      case FieldType::duration:
        return format_duration(std::chrono::nanoseconds(whole));
      default: {
        char text[32];
        const auto end = std::to_chars(text, text + sizeof text, bound).ptr;
        return bound == std::floor(bound) && std::abs(bound) < 1e15 ? std::to_string(whole) : std::string(text, end);
      }
    }
  };
  return show(field.min) + " to " + show(field.max);
}

std::optional<Complaint> check_bounds(const Field& field, double number, std::string_view text) {
  if (field.min == 0 && field.max == 0) return std::nullopt;
  if (number >= field.min && number <= field.max) return std::nullopt;
  return Complaint{quoted(text) + " is outside " + bounds_text(field), "choose a value from " + bounds_text(field)};
}

Complaint wrong_type(const Field& field, std::string_view text) {
  return {"expected " + std::string(type_description(field.type)) + ", found " + quoted(text),
          "write " + std::string(type_description(field.type))};
}

std::optional<Complaint> check_boolean(const Field& field, const Value& value) {
  if (!value.quoted && (value.text == "true" || value.text == "false")) return std::nullopt;
  Complaint complaint = wrong_type(field, value.text);
  const std::string meaning = yaml_surprise(value.text);
  if (meaning == "true" || meaning == "false") complaint.fix = "write " + meaning;
  if (value.quoted) complaint.fix = "write true or false without quotes";
  return complaint;
}

std::optional<Complaint> check_number(const Field& field, const Value& value) {
  static const std::regex whole("-?(0|[1-9][0-9]*)"), decimal("-?(0|[1-9][0-9]*)(\\.[0-9]+)?");
  const bool is_whole = field.type == FieldType::integer;
  if (value.quoted)
    return Complaint{"expected " + std::string(type_description(field.type)) + ", found a quoted text",
                     "remove the quotes"};
  if (value.text.size() > 24 || !matches(value.text, is_whole ? whole : decimal)) {
    Complaint complaint = wrong_type(field, value.text);
    if (yaml_surprise(value.text) == "an octal number")
      complaint.fix = "write it without the leading zero, in decimal";
    else if (value.text.find_first_of("eE") != std::string::npos && yaml_surprise(value.text) == "a number")
      complaint.fix = "write the number out, without an exponent";
    else if (value.text.find('_') != std::string::npos)
      complaint.fix = "write the digits without `_`";
    return complaint;
  }
  double number = 0;
  std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
  return check_bounds(field, number, value.text);
}

std::optional<Complaint> check_quantity(const Field& field, const Value& value) {
  std::optional<double> number;
  std::string_view unit_example;
  switch (field.type) {
    case FieldType::bytes:
      if (const auto bytes = parse_bytes(value.text)) number = static_cast<double>(*bytes);
      unit_example = "GiB";
      break;
    case FieldType::bandwidth:
      if (const auto bits = parse_bandwidth(value.text)) number = static_cast<double>(*bits);
      unit_example = "Gbit/s";
      break;
    case FieldType::duration:
      if (const auto duration = parse_duration(value.text)) number = static_cast<double>(duration->count());
      unit_example = "s";
      break;
    default:
      if (const auto tokens = parse_tokens(value.text)) number = static_cast<double>(*tokens);
  }
  if (number) return check_bounds(field, *number, value.text);
  static const std::regex bare("[0-9]+(\\.[0-9]+)?");
  if (!unit_example.empty() && matches(value.text, bare))
    return Complaint{quoted(value.text) + " has no unit",
                     "write the unit, for example " + one_line(value.text, 40) + std::string(unit_example)};
  return wrong_type(field, value.text);
}

bool leaves_folder(std::string_view path) {
  for (size_t start = 0; start <= path.size();) {
    const size_t slash = std::min(path.find('/', start), path.size());
    if (path.substr(start, slash - start) == "..") return true;
    start = slash + 1;
  }
  return false;
}

std::optional<Complaint> check_path(const Field& field, const Value& value) {
  const std::string& text = value.text;
  if (text.find('\n') != std::string::npos) return wrong_type(field, text);
  const bool absolute = text.starts_with('/');
  if (field.type == FieldType::folder || field.type == FieldType::program) {
    if (text.starts_with('~'))
      return Complaint{"`~` is not expanded in " + quoted(text), "write the whole path, starting with /"};
    if (!absolute || leaves_folder(text)) return wrong_type(field, text);
    return std::nullopt;
  }
  if (field.type == FieldType::pack_folder && value.layer != Layer::recipe) return std::nullopt;
  if (absolute || text.starts_with('~') || leaves_folder(text))
    return Complaint{"the path " + quoted(text) + " leads out of the recipe's folder",
                     field.type == FieldType::pack_folder
                         ? "put the pack beside the recipe, or set pack.path in the cluster file or with --set"
                         : "put the base recipe into the same folder or below"};
  if (field.type == FieldType::base_file && !text.ends_with(".yaml") && !text.ends_with(".yml"))
    return wrong_type(field, text);
  return std::nullopt;
}

std::optional<Complaint> check_word(const Field& field, const Value& value) {
  static const std::regex name("[A-Za-z0-9][A-Za-z0-9._-]{0,95}"),
      repo("[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"),
      revision("[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"), date("20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
      web_url("https?://[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[A-Za-z0-9._~%/+=&?#:,-]*)?"),
      address("[A-Za-z0-9]([A-Za-z0-9.-]{0,252})|[0-9a-fA-F:]{2,39}"), http_path("/[A-Za-z0-9._~/-]{0,200}"),
      device("cpu|cuda:[0-9]{1,2}");
  const std::string& text = value.text;
  const bool dotted = text.find("..") != std::string::npos;
  bool good = true;
  switch (field.type) {
    case FieldType::name:
      good = matches(text, name) && !dotted;
      break;
    case FieldType::repo:
      good = matches(text, repo) && !dotted && text.find("--") == std::string::npos;
      break;
    case FieldType::revision:
      good = matches(text, revision) && !dotted && !text.ends_with('/');
      break;
    case FieldType::date:
      good = matches(text, date);
      break;
    case FieldType::web_url:
      good = text.size() <= 1024 && matches(text, web_url);
      break;
    case FieldType::address:
      good = matches(text, address);
      break;
    case FieldType::http_path:
      good = matches(text, http_path) && !dotted;
      break;
    case FieldType::device:
      good = matches(text, device);
      break;
    default:
      break;
  }
  if (!good && field.type == FieldType::web_url && text.find('@') != std::string::npos)  // not to be repeated in logs
    return Complaint{"the address holds a user or a password", "remove them; tokens come from HF_TOKEN"};
  if (!good) return wrong_type(field, text);
  return std::nullopt;
}

std::optional<Complaint> check_text(const Field& field, const Value& value) {
  if (value.text.empty()) return Complaint{"an empty text", "write a value, or remove the key"};
  if (value.text.size() > kMaxText)
    return Complaint{"a text of " + std::to_string(value.text.size()) + " bytes is too long",
                     "keep it below " + std::to_string(kMaxText)};
  if (field.type == FieldType::text) return std::nullopt;
  if (value.text.find('\n') != std::string::npos)
    return Complaint{"a value of several lines where one line is expected", "write it on one line, in quotes"};
  if (field.type == FieldType::argument)
    if (const auto problem = check_placeholders(value.text)) return Complaint{problem->what, problem->fix};
  return std::nullopt;
}

/// Escapes in quoted YAML texts can bring in what check_source kept out of the file itself.
bool has_control_characters(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) return true;
    if (c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) return true;  // C1
  }
  return false;
}

}  // namespace

std::optional<Complaint> check_scalar(const Field& field, const Value& value) {
  if (has_control_characters(value.text))
    return Complaint{"the text " + quoted(value.text) + " holds control characters", "remove the escapes"};
  switch (field.type) {
    case FieldType::boolean:
      return check_boolean(field, value);
    case FieldType::integer:
    case FieldType::number:
      return check_number(field, value);
    case FieldType::bytes:
    case FieldType::tokens:
    case FieldType::bandwidth:
    case FieldType::duration:
      return check_quantity(field, value);
    case FieldType::choice: {
      std::vector<std::string> choices(field.choices.begin(), field.choices.end());
      if (std::find(choices.begin(), choices.end(), value.text) != choices.end()) return std::nullopt;
      std::string all;
      for (const std::string& choice : choices) all += (all.empty() ? "" : ", ") + choice;
      const std::string near = nearest_name(value.text, choices);
      return Complaint{quoted(value.text) + " is not one of: " + all,
                       near.empty() ? "choose one of them" : "did you mean `" + near + "`?"};
    }
    default:
      break;
  }
  // From here on a text is expected: what other readers take for something else must be quoted.
  const std::string meaning = value.quoted || value.layer == Layer::set ? "" : yaml_surprise(value.text);
  const bool plain_number_is_fine =
      (field.type == FieldType::argument || field.type == FieldType::env_value) && is_plain_integer(value.text);
  if (!meaning.empty() && !plain_number_is_fine && field.type != FieldType::date)
    return Complaint{"without quotes " + quoted(value.text) + " is " + meaning + " to YAML readers, not a text",
                     "write \"" + one_line(value.text, 60) + "\""};
  switch (field.type) {
    case FieldType::base_file:
    case FieldType::pack_folder:
    case FieldType::folder:
    case FieldType::program:
      if (value.text.empty()) return wrong_type(field, value.text);
      return check_path(field, value);
    case FieldType::text:
    case FieldType::argument:
    case FieldType::env_value:
      return check_text(field, value);
    default:
      return check_word(field, value);
  }
}

}  // namespace tandem
