// The complex numbers of thrust, which torch's headers name in .cu files.
#pragma once

#include <complex>

namespace thrust {

// A type of its own: torch has conversions for it beside those for std::complex.
template <class T>
struct complex : std::complex<T> {
  using std::complex<T>::complex;
  complex() = default;
  complex(const std::complex<T>& other) : std::complex<T>(other) {}
};

#define VCCL_CUDA_COMPLEX(name)                                 \
  template <class T>                                            \
  complex<T> name(const complex<T>& x) {                        \
    return std::name(static_cast<const std::complex<T>&>(x));   \
  }
VCCL_CUDA_COMPLEX(exp)
VCCL_CUDA_COMPLEX(log)
VCCL_CUDA_COMPLEX(log10)
VCCL_CUDA_COMPLEX(sqrt)
VCCL_CUDA_COMPLEX(sin)
VCCL_CUDA_COMPLEX(cos)
VCCL_CUDA_COMPLEX(tan)
VCCL_CUDA_COMPLEX(asin)
VCCL_CUDA_COMPLEX(acos)
VCCL_CUDA_COMPLEX(atan)
VCCL_CUDA_COMPLEX(sinh)
VCCL_CUDA_COMPLEX(cosh)
VCCL_CUDA_COMPLEX(tanh)
VCCL_CUDA_COMPLEX(asinh)
VCCL_CUDA_COMPLEX(acosh)
VCCL_CUDA_COMPLEX(atanh)
VCCL_CUDA_COMPLEX(conj)
#undef VCCL_CUDA_COMPLEX

template <class T>
T abs(const complex<T>& x) {
  return std::abs(static_cast<const std::complex<T>&>(x));
}
template <class T>
T arg(const complex<T>& x) {
  return std::arg(static_cast<const std::complex<T>&>(x));
}
template <class T>
T norm(const complex<T>& x) {
  return std::norm(static_cast<const std::complex<T>&>(x));
}
template <class T>
complex<T> polar(const T& length, const T& angle = T()) {
  return std::polar(length, angle);
}
template <class T>
complex<T> pow(const complex<T>& x, const complex<T>& y) {
  return std::pow(static_cast<const std::complex<T>&>(x), static_cast<const std::complex<T>&>(y));
}
template <class T, class U>
complex<T> pow(const complex<T>& x, const U& y) {
  return std::pow(static_cast<const std::complex<T>&>(x), std::complex<T>(y));
}
template <class T, class U>
complex<U> pow(const T& x, const complex<U>& y) {
  return std::pow(std::complex<U>(x), static_cast<const std::complex<U>&>(y));
}

}  // namespace thrust
