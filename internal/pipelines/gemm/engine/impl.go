package engine

import "fmt"

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

// String returns the name used by --impl.
func (i Impl) String() string {
	switch i {
	case Auto:
		return "auto"
	case CoopMat:
		return "coopmat"
	case Scalar:
		return "scalar"
	}
	return fmt.Sprintf("Impl(%d)", uint8(i))
}

// ParseImpl accepts the names that String returns.
func ParseImpl(name string) (Impl, error) {
	for _, i := range append(Impls(), Auto) {
		if name == i.String() {
			return i, nil
		}
	}
	return 0, fmt.Errorf("gemm: impl %q is not one of auto, coopmat, scalar", name)
}
