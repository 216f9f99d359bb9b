package vk_test

import (
	"errors"
	"testing"

	"github.com/flashvk/flashvk/internal/vk/vktest"
)

// TestKeep wants the first error of a function that records, and no run of what it left.
func TestKeep(t *testing.T) {
	d := vktest.Open(t)
	c := newCmd(t, d)
	half := func(err error) (result error) {
		defer c.Keep(&result)
		return err
	}
	if half(nil) != nil || c.Err() != nil {
		t.Fatalf("no error is %v", c.Err())
	}
	first := errors.New("first")
	if half(first) != first || half(errors.New("second")) == nil {
		t.Error("the function does not return its own error")
	}
	if err := c.Submit(background()); err != first {
		t.Errorf("Submit returns %v", err)
	}
	c.Reset()
	if err := c.Submit(background()); err != nil {
		t.Errorf("after Reset: %v", err)
	}
	c.Reset()
	c.Trace(nil)
	wantError(t, "Trace(nil)", c.Submit(background()), "Trace: there is none")
}
