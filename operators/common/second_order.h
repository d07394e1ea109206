// Gradients of gradient operators, composed of operators that exist.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/op_desc.h"
#include "framework/op_info.h"

namespace headrace::ops {

// The operators that compute the gradients of one gradient operator's inputs. Each is a term: it reads at most one of
// the gradients that are given (the others count as constants), so that append_backward can leave it out where that one
// is missing. Several terms may write one gradient: they are added up.
//
//   GradientTerms terms(op);  // square_grad: X@GRAD = 2 · X · Out@GRAD
//   terms.Add("square_grad", {{"X", terms.Value("X")}, {"Out@GRAD", terms.Given("X@GRAD")}},
//             {{"X@GRAD", terms.Wanted("Out@GRAD")}});
//
// Names that `op` lacks are kEmptyVarName. A term that reads or writes such a one is left out.
class GradientTerms {
 public:
  // Slot → a variable.
  using Slots = std::map<std::string, std::string>;

  // `op` must outlive this.
  explicit GradientTerms(const OpDesc& op) : op_(op) {}

  // The variable of an input or output slot.
  std::string Value(std::string_view slot) const;
  // The gradient of an output slot's variable, and that of an input slot's.
  std::string Given(std::string_view output) const;
  std::string Wanted(std::string_view input) const;
  // The attributes of `op`, for operators that declare the same ones.
  AttributeMap Attrs() const;

  void Add(const std::string& type, const Slots& inputs, const Slots& outputs, AttributeMap attrs = {});
  // Adds an operator that writes a variable of its own; returns the variable, or kEmptyVarName if it is left out.
  std::string Make(const std::string& type, const Slots& inputs, const std::string& output, AttributeMap attrs = {});
  // Element by element, of variables of the same dims.
  std::string Product(const std::string& x, const std::string& y) {
    return Make("elementwise_mul", {{"X", x}, {"Y", y}}, "Out");
  }
  void AddScaled(const std::string& x, double factor, const std::string& out) {
    Add("scale", {{"X", x}}, {{"Out", out}}, {{"scale", factor}});
  }

  std::vector<OpDesc> Take() { return std::move(ops_); }

 private:
  const OpDesc& op_;
  std::vector<OpDesc> ops_;
  size_t made_ = 0;
};

// Of `<type>_grad`, where `type` is linear in input `x` and the gradient operator reads `out`@GRAD, no more than the
// dims of `x`, and perhaps other inputs of `type`, which say what goes where: `type` itself, with these inputs and the
// attributes of the gradient operator. `constant`: of a `type` that is not quite linear, the attribute that is 0 then.
GradientMaker GradientOfLinear(std::string type, std::string x = "X", std::string out = "Out",
                               std::string constant = "");

// Of `<type>_grad`, where `type` is linear in each of the inputs `x` and `y` and its gradient reads both and
// `out`@GRAD: products, convolutions. From the gradients U of x@GRAD and V of y@GRAD come those of out@GRAD: type(U, y)
// + type(x, V); of x: that of type(x, V) by x; of y: that of type(U, y) by y.
GradientMaker GradientOfBilinear(std::string type, std::string x = "X", std::string y = "Y", std::string out = "Out");

// Of a gradient operator that is linear in input `gradient` and otherwise reads `constants`, of which its derivative is
// zero or which are no numbers to differentiate by: the operator itself, applied to the gradient of `output`, which has
// the dims of `gradient`: masks.
GradientMaker GradientOfMask(std::vector<std::string> constants, std::string gradient = "Out@GRAD",
                             std::string output = "X@GRAD");

}  // namespace headrace::ops
