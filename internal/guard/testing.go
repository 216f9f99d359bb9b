package guard

import (
	"github.com/flashvk/flashvk/vk"
)

// A T is a *testing.T. The package does not import testing, since the program links it.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Log(args ...any)
}

// A Parent is a T that has subtests: a *testing.T is a Parent[*testing.T].
type Parent[S any] interface {
	T
	Run(name string, f func(t S)) bool
	Skip(args ...any)
	Errorf(format string, args ...any)
}

// Test fails t with what Check finds wrong, and logs how close the outputs came.
func (c *Case) Test(t T, d *vk.Device, record Record) {
	t.Helper()
	report, err := c.Check(d, record)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
}
