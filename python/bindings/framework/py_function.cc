// headrace._core.PyFunction, and the operator that calls one.
#include "python/bindings/framework/py_function.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "framework/thread_annotations.h"
#include "python/bindings/bindings.h"
#include "python/bindings/numpy_interop.h"
#include "python/bindings/python_error.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

// Nothing is dropped under the mutex: the end of a function takes it, and perhaps the GIL.
struct Functions {
  Mutex mutex;
  std::map<int64_t, std::weak_ptr<PyFunction>> by_id HR_GUARDED_BY(mutex);
};

// Never destroyed: functions may end with the process.
Functions& AllFunctions() {
  static auto* functions = new Functions;
  return *functions;
}

int64_t RandomId() {
  std::random_device random;
  return std::uniform_int_distribution<int64_t>(0, std::numeric_limits<int64_t>::max())(random);
}

}  // namespace

PyFunction::PyFunction(int64_t id, SharedObject callable) : id_(id), callable_(std::move(callable)) {}

std::shared_ptr<PyFunction> PyFunction::Make(py::object callable) {
  HR_ENFORCE(PyCallable_Check(callable.ptr()) != 0, TypeMismatch, "a function was expected, got type ",
             Py_TYPE(callable.ptr())->tp_name);
  SharedObject shared = ShareObject(std::move(callable));
  Functions& functions = AllFunctions();
  const MutexLock lock(functions.mutex);
  int64_t id = RandomId();
  while (functions.by_id.contains(id)) {
    id = RandomId();
  }
  std::shared_ptr<PyFunction> function(new PyFunction(id, std::move(shared)));
  functions.by_id.emplace(id, function);
  return function;
}

std::shared_ptr<PyFunction> PyFunction::Find(int64_t id) {
  std::shared_ptr<PyFunction> function;
  {
    Functions& functions = AllFunctions();
    const MutexLock lock(functions.mutex);
    if (const auto it = functions.by_id.find(id); it != functions.by_id.end()) {
      function = it->second.lock();
    }
  }
  HR_ENFORCE(function != nullptr, NotFound, "there is no Python function of the number ", id,
             ": py_func needs the process that has built its program; it cannot be loaded elsewhere");
  return function;
}

PyFunction::~PyFunction() {
  Functions& functions = AllFunctions();
  const MutexLock lock(functions.mutex);
  functions.by_id.erase(id_);
}

namespace {

constexpr int64_t kNoFunction = -1;

class PyFuncOp : public OperatorBase {
 public:
  explicit PyFuncOp(OpDesc desc)
      : OperatorBase(std::move(desc)), function_(PyFunction::Find(Attr<int64_t>("forward_callable_id"))) {}

  void Prepare(const BlockDesc& block) override {
    for (const std::string& name : Outputs("Out")) {
      declared_.push_back(name == kEmptyVarName ? TensorSpec{} : block.GetVar(name).tensor);
    }
  }

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const GilHeld gil;
    HR_ENFORCE(static_cast<bool>(gil), FailedPrecondition, "the interpreter is ending");
    try {
      const py::tuple arguments = Arguments(ctx);
      const py::object result = py::reinterpret_borrow<py::object>(function_->callable())(*arguments);
      TakeResults(ctx, result);
    } catch (py::error_already_set& error) {
      error.restore();
      throw PythonError::Fetch();
    }
  }

  // The tensors, sharing their memory; None for a gradient that there is not.
  static py::tuple Arguments(const ExecutionContext& ctx) {
    py::tuple arguments(ctx.InputSize("X"));
    for (size_t i = 0; i < arguments.size(); ++i) {
      const LoDTensor* tensor = ctx.InputOrNull("X", i);
      arguments[i] = tensor == nullptr ? py::object(py::none()) : py::cast(*tensor);
    }
    return arguments;
  }

  void TakeResults(const ExecutionContext& ctx, const py::object& result) const {
    const size_t expected = ctx.OutputSize("Out");
    std::vector<py::object> results;
    if (py::isinstance<py::tuple>(result) || py::isinstance<py::list>(result)) {
      const auto items = result.cast<std::vector<py::object>>();
      results.assign(items.begin(), items.end());
    } else if (expected != 0 || !result.is_none()) {
      results.push_back(result);
    }
    HR_ENFORCE(results.size() == expected, InvalidArgument, "the function has returned ", results.size(),
               " results, expected ", expected, " (", desc().ToString(), ")");
    for (size_t i = 0; i < expected; ++i) {
      LoDTensor* out = ctx.OutputOrNull("Out", i);
      if (out == nullptr) {
        continue;
      }
      try {
        TakeResult(results[i], i, out);
      } catch (Error& error) {
        error.SetVariable(ctx.OutputVar("Out", i)->name());
        throw;
      }
    }
  }

  // Copies: an output must not share memory with an input, and what the function returns may be changed by it later.
  void TakeResult(const py::object& result, size_t i, LoDTensor* out) const {
    HR_ENFORCE(!result.is_none(), InvalidArgument, "the function has returned None for '", Outputs("Out")[i],
               "', expected a tensor or an array");
    const LoDTensor value = TensorFromPython(result, /*copy=*/false);
    HR_ENFORCE(value.initialized(), InvalidArgument, "the function has returned an empty tensor for '",
               Outputs("Out")[i], "'");
    const TensorSpec& declared = declared_.at(i);
    HR_ENFORCE(value.dtype() == declared.dtype, TypeMismatch, "'", Outputs("Out")[i], "' is declared as ",
               DataTypeName(declared.dtype), ", the function has returned ", DataTypeName(value.dtype()));
    HR_ENFORCE(Matches(declared.dims, value.dims()), InvalidArgument, "'", Outputs("Out")[i],
               "' is declared with shape ", ToString(declared.dims), ", the function has returned ",
               ToString(value.dims()));
    CheckLoD(value.lod(), value.dims().empty() ? 1 : value.dims()[0]);
    out->CopyFrom(value);
    out->set_lod(value.lod());
  }

  const std::shared_ptr<PyFunction> function_;
  std::vector<TensorSpec> declared_;
};

// The inputs and outputs that are not to be skipped, and the gradients of the outputs → the gradients of the inputs.
std::vector<OpDesc> PyFuncGradient(const OpDesc& op) {
  const auto backward = op.Attr<int64_t>("backward_callable_id");
  if (backward == kNoFunction) {
    return {};
  }
  OpDesc gradient;
  gradient.type = op.type;
  gradient.attrs["forward_callable_id"] = backward;
  const auto& skipped = op.Attr<std::vector<std::string>>("backward_skip_vars");
  std::vector<std::string>& inputs = gradient.inputs["X"];
  for (const auto* names : {&op.Input("X"), &op.Output("Out")}) {
    std::copy_if(names->begin(), names->end(), std::back_inserter(inputs), [&skipped](const std::string& name) {
      return std::find(skipped.begin(), skipped.end(), name) == skipped.end();
    });
  }
  for (const std::string& name : op.Output("Out")) {
    inputs.push_back(name == kEmptyVarName ? name : GradVarName(name));
  }
  for (const std::string& name : op.Input("X")) {
    gradient.outputs["Out"].push_back(name == kEmptyVarName ? name : GradVarName(name));
  }
  return {std::move(gradient)};
}

HEADRACE_REGISTER_OP(py_func)
    .Comment("Calls a Python function with the inputs, as LoDTensors; its results are the outputs.")
    .Input("X", "the arguments of the function", kDuplicable | kDispensable)
    .Output("Out", "its results, in the dtypes and shapes that the program declares", kDuplicable | kDispensable)
    .Attr<int64_t>("forward_callable_id", "the number of the function, of this process", kNoFunction,
                   [](const int64_t& id) { (void)PyFunction::Find(id); })
    .Attr<int64_t>("backward_callable_id",
                   "that of the function which computes the gradients of X; -1: no gradient passes", kNoFunction,
                   [](const int64_t& id) {
                     if (id != kNoFunction) {
                       (void)PyFunction::Find(id);
                     }
                   })
    .Attr<std::vector<std::string>>("backward_skip_vars",
                                    "variables of X and Out that the second function is not called with", {})
    .Operator<PyFuncOp>()
    .Gradient(PyFuncGradient);

}  // namespace

void BindPyFunction(py::module_& m) {
  py::class_<PyFunction, std::shared_ptr<PyFunction>>(m, "PyFunction",
                                                      "A Python function that the operator py_func calls. Programs "
                                                      "refer to it by its number, which is found as long as "
                                                      "somebody\n"
                                                      "holds this object.")
      .def(py::init(&PyFunction::Make), py::arg("callable"))
      .def_static("find", &PyFunction::Find, py::arg("id"), "KeyError if there is none of that number.")
      .def_property_readonly("id", &PyFunction::id);
}

}  // namespace headrace::python
