// A program's locale in which numbers look different.
#pragma once

#include <locale>
#include <string>

namespace headrace {

// While it exists, 1234.5 is 1.234,5 on new streams.
class GermanLocale {
 public:
  GermanLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new Numbers))) {}
  ~GermanLocale() { std::locale::global(before_); }
  GermanLocale(const GermanLocale&) = delete;
  GermanLocale& operator=(const GermanLocale&) = delete;

 private:
  struct Numbers : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };

  const std::locale before_;
};

}  // namespace headrace
