package vktest

import (
	"context"
	"log"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// An Example has the device and the tensors of an example. An error ends the program.
type Example struct {
	D       *vk.Device
	tensors []vk.Tensor
}

// NewExample opens the best device there is.
func NewExample() *Example {
	d, err := vk.Open(vk.Options{})
	Must(err)
	return &Example{D: d}
}

// Must ends the program with an error.
func Must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Tensor makes a tensor with these values, or with none.
func (e *Example) Tensor(format dtype.DType, shape []int, values ...float32) vk.Tensor {
	t, err := e.D.NewTensor("example", format, shape...)
	if Must(err); values != nil {
		Must(t.Upload(context.Background(), values))
	}
	e.tensors = append(e.tensors, t)
	return t
}

// Float32 is Tensor in float32.
func (e *Example) Float32(shape []int, values ...float32) vk.Tensor {
	return e.Tensor(dtype.Float32, shape, values...)
}

// Run records commands, submits them, and waits.
func (e *Example) Run(record func(c *vk.Cmd) error) {
	Must(e.D.Run(context.Background(), "example", record))
}

// Values returns the values of a tensor.
func (e *Example) Values(t vk.Tensor) []float32 {
	values := make([]float32, t.NumElements())
	Must(t.Download(context.Background(), values))
	return values
}

// Close closes the tensors and the device.
func (e *Example) Close() {
	for _, t := range e.tensors {
		t.Close()
	}
	e.D.Close()
}
