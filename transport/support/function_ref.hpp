// A reference to a callable object.
#pragma once

namespace vccl {

/// Refers to a callable object, which must outlive the reference, for the part of a wait that is not
/// performance-critical enough for a template.
template <class Result, class... Arguments>
class FunctionRef;
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class F>
  FunctionRef(F& f)  // NOLINT: implicit by intent
      : object_(&f), call_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<F*>(object))(arguments...);
        }) {}
  Result operator()(Arguments... arguments) const { return call_(object_, arguments...); }

 private:
  void* object_;
  Result (*call_)(void*, Arguments...);
};

}  // namespace vccl
