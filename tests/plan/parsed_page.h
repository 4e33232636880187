// A page of HTML as its elements, read by the rules of XML but for <!DOCTYPE> and <meta>: what is not well
// formed is a failure of the test.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::testing {

struct PageElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;      // of its own, and of the elements in it
  std::string own_text;  // without theirs
  int parent = -1;
};

class ParsedPage {
 public:
  explicit ParsedPage(const std::string& html) : html_(html) {
    while (at_ < html_.size() && !broken_) {
      if (html_.compare(at_, 9, "<!DOCTYPE") == 0) {
        at_ = html_.find('>', at_) + 1;
      } else if (html_[at_] == '<') {
        read_tag();
      } else {
        add_text(unescaped(until("<")));
      }
    }
    EXPECT_TRUE(open_.empty()) << "not closed: " << (open_.empty() ? "" : elements[open_.back()].name);
  }

  std::vector<const PageElement*> all(const std::string& name, const std::string& css_class = "") const {
    std::vector<const PageElement*> found;
    for (const PageElement& element : elements) {
      const auto its = element.attributes.find("class");
      const std::string classes = " " + (its == element.attributes.end() ? "" : its->second) + " ";
      if (element.name == name &&
          (css_class.empty() || classes.find(" " + css_class + " ") != std::string::npos))
        found.push_back(&element);
    }
    return found;
  }
  std::vector<const PageElement*> children(const PageElement& parent) const {
    std::vector<const PageElement*> found;
    for (const PageElement& element : elements)
      if (element.parent >= 0 && &elements[static_cast<size_t>(element.parent)] == &parent)
        found.push_back(&element);
    return found;
  }

  std::vector<PageElement> elements;

 private:
  void fail(const std::string& what) {
    ADD_FAILURE() << what << " at ..." << html_.substr(at_ < 60 ? 0 : at_ - 60, 120);
    broken_ = true;
  }
  std::string until(const char* ends) {
    const size_t begin = at_;
    at_ = std::min(html_.find_first_of(ends, at_), html_.size());
    return html_.substr(begin, at_ - begin);
  }
  void add_text(const std::string& text) {
    if (open_.empty()) {
      if (text.find_first_not_of(" \n") != std::string::npos) fail("text outside of elements");
      return;
    }
    elements[open_.back()].own_text += text;
    for (const size_t each : open_) elements[each].text += text;
  }
  void read_tag() {
    ++at_;
    if (html_[at_] == '/') {
      ++at_;
      const std::string name = until(">");
      ++at_;
      if (open_.empty() || elements[open_.back()].name != name) return fail("</" + name + "> closes nothing");
      open_.pop_back();
      return;
    }
    PageElement element;
    element.name = until(" />");
    if (!open_.empty()) element.parent = static_cast<int>(open_.back());
    if (element.name.empty()) return fail("a < that begins no tag");
    for (; html_[at_] == ' '; ++at_) {
      ++at_;
      const std::string name = until("=> ");
      if (html_.compare(at_, 2, "=\"") != 0) return fail("an attribute without a quoted value");
      at_ += 2;
      if (!element.attributes.emplace(name, unescaped(until("\""))).second)
        return fail("an attribute given twice");
      --at_;
      if (html_[++at_] != '"') return fail("a value without its end");
    }
    const bool closed = html_[at_] == '/';
    at_ += closed ? 1 : 0;
    if (html_[at_++] != '>') return fail("a tag without its end");
    const bool is_void = element.name == "meta";
    elements.push_back(std::move(element));
    if (!closed && !is_void) open_.push_back(elements.size() - 1);
  }
  std::string unescaped(const std::string& text) {
    static const std::map<std::string, std::string> entities{
        {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"#39", "'"}};
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '&') {
        plain += text[i];
        continue;
      }
      const size_t end = text.find(';', i);
      const auto entity = entities.find(text.substr(i + 1, end - i - 1));
      if (entity == entities.end()) {
        fail("an & that begins no entity");
        return plain;
      }
      plain += entity->second;
      i = end;
    }
    return plain;
  }

  const std::string& html_;
  size_t at_ = 0;
  bool broken_ = false;
  std::vector<size_t> open_;
};

}  // namespace trireme::testing
