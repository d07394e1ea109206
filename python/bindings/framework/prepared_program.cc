// headrace._core.PreparedProgram.
#include <pybind11/stl.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/thread_annotations.h"
#include "framework/wait_hook.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/scope.h"
#include "python/bindings/gil.h"
#include "python/bindings/numpy_interop.h"

namespace headrace::python {

namespace py = pybind11;

// A program prepared for one scope, and the executor that runs it. It does not keep the scope alive: a cache may hold
// it.
//
// Thread-safety: the handles are guarded by the GIL. Run gives the GIL up before it takes run_mutex_ (rule 1 of gil.h);
// two threads that run it take turns.
class Prepared {
 public:
  Prepared(const Executor& executor, const ProgramDesc& program, const std::shared_ptr<ScopeHandle>& scope)
      : executor_(executor), prepared_(executor.Prepare(program)), scope_(scope) {
    scope->Attach(prepared_);
  }

  ~Prepared() {
    const auto scope = scope_.lock();  // ends after the program, which points into it
    if (scope != nullptr) {
      scope->Detach(prepared_);
    }
    GilReleased nogil;  // its temporaries may belong to Python
    prepared_.reset();
  }

  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  std::vector<LoDTensor> Run(const py::dict& feed, const std::vector<std::string>& fetches) {
    const auto scope = scope_.lock();
    HR_ENFORCE(scope != nullptr, FailedPrecondition, "the scope of this prepared program is gone");
    std::map<std::string, LoDTensor> feeds;
    for (const auto& [name, value] : feed) {
      const auto key = name.cast<std::string>();
      try {
        feeds.emplace(key, TensorFromPython(value, /*copy=*/false));
      } catch (Error& error) {
        error.SetVariable(key);
        throw;
      }
    }
    std::vector<LoDTensor> fetched;
    HR_ENFORCE(runner_.load() != std::this_thread::get_id(), FailedPrecondition,
               "a program cannot be run by a function that it calls");
    {
      GilReleased nogil;
      const MutexLock lock(run_mutex_);
      const Runner runner(&runner_);
      const ScopedWaitHook hook(&CheckSignals);  // lets Ctrl-C end the run
      prepared_->SetFetches(fetches);
      executor_.Run(*prepared_, &scope->scope(), feeds, &fetched);
    }
    return fetched;
  }

 private:
  // Says which thread runs the program, for as long as it does.
  class Runner {
   public:
    explicit Runner(std::atomic<std::thread::id>* runner) : runner_(runner) { *runner_ = std::this_thread::get_id(); }
    ~Runner() { *runner_ = std::thread::id(); }
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;

   private:
    std::atomic<std::thread::id>* runner_;
  };

  const Executor executor_;
  std::shared_ptr<PreparedProgram> prepared_;  // also the scope's, while that ends
  std::weak_ptr<ScopeHandle> scope_;
  Mutex run_mutex_;  // one run at a time
  std::atomic<std::thread::id> runner_{};
};

void BindPreparedProgram(py::module_& m) {
  py::class_<Prepared>(
      m, "PreparedProgram",
      "The root block of a program, made runnable on one scope, which it does not keep alive. The program is copied.")
      .def(py::init<const Executor&, const ProgramDesc&, const std::shared_ptr<ScopeHandle>&>(), py::arg("executor"),
           py::arg("program"), py::arg("scope"))
      .def("run", &Prepared::Run, py::arg("feed"), py::arg("fetches"),
           "Runs once, without the GIL, and returns the tensors named in ``fetches``, which are not written to "
           "afterwards. ``feed`` maps\n"
           "names to LoDTensors or arrays; arrays are not copied where that is possible.");
}

}  // namespace headrace::python
