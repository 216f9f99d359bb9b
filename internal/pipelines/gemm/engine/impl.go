package engine

import "github.com/flashvk/flashvk/internal/enum"

// An Impl is a path: one implementation.
type Impl uint8

// The paths. Auto takes the first of the others that supports the problem, on a CPU device
// Scalar before CoopMat.
const (
	Auto Impl = iota
	CoopMat
	Scalar
)

// Impls lists the paths in the order in which Auto tries them.
func Impls() []Impl { return []Impl{CoopMat, Scalar} }

var implNames = enum.Names[Impl]{Auto: "auto", CoopMat: "coopmat", Scalar: "scalar"}

// String returns the name used by --impl.
func (i Impl) String() string { return implNames.Of(i) }

// ParseImpl accepts the names that String returns.
func ParseImpl(name string) (Impl, error) { return implNames.Parse("gemm: impl", name) }
