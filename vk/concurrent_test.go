package vk_test

import (
	"bytes"
	"cmp"
	"errors"
	"math/rand"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestConcurrent uses one device from many goroutines; run it with -race.
func TestConcurrent(t *testing.T) {
	d := vktest.Open(t)
	shared := tensor(t, d, "shared", 1, 2, 3, 4)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			assert.NoError(t, work(d, shared, w, 6))
		}()
	}
	wg.Wait()
	wantTensor(t, shared, 1, 2, 3, 4)
}

// work makes, uses and closes objects of every kind, and moves up to some megabytes.
func work(d *vk.Device, shared vk.Tensor, w, rounds int) error {
	for r := range rounds {
		// Some specializations are the same in several goroutines.
		scale := float32(w%3 + r)
		k, err := vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: uint32(scale)}, vk.KernelOptions{})
		if err != nil {
			return err
		}
		d.CachedKernels()
		other, err := d.NewTensor("y", dtype.Float16, 4)
		if err != nil {
			return err
		}
		other.Close()
		y, err := d.NewTensor("y", dtype.Float32, 4)
		if err != nil {
			return err
		}
		c, err := d.NewCmd("work")
		if err != nil {
			return err
		}
		err = cmp.Or(copies(d, rand.New(rand.NewSource(int64(100*w+r)))), y.Upload(background(), []float32{float32(w), 0, 0, 0}))
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 4, A: 1}, shared, y)
		got := make([]float32, 4)
		err = cmp.Or(err, c.Submit(background()), c.Submit(background()), y.Download(background(), got))
		if err == nil && (got[0] != float32(w)+2*scale || got[3] != 8*scale) {
			err = errors.New("a result of another goroutine")
		}
		err = cmp.Or(err, c.Start(background()))
		y.Close() // in flight
		c.Close()
		if _, heapsErr := d.Heaps(); cmp.Or(err, heapsErr) != nil {
			return cmp.Or(err, heapsErr)
		}
	}
	return nil
}

// copies uploads and downloads bytes.
func copies(d *vk.Device, rng *rand.Rand) error {
	want := random(rng, 1+rng.Intn(1<<(10+rng.Intn(13))))
	b, err := d.NewBuffer("b", int64(len(want)))
	if err != nil {
		return err
	}
	defer b.Close()
	got := make([]byte, len(want))
	err = cmp.Or(b.Upload(background(), 0, want), b.Download(background(), 0, got))
	if err == nil && !bytes.Equal(want, got) {
		err = errors.New("other bytes")
	}
	return err
}

// TestConcurrentOpen opens and closes devices side by side; run it with -race.
func TestConcurrentOpen(t *testing.T) {
	vktest.Open(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d, err := vk.Open(vk.Options{Validate: vk.HaveValidation() == nil})
			if !assert.NoError(t, err) {
				return
			}
			b, err := d.NewBuffer("b", 64)
			assert.NoError(t, err)
			assert.NoError(t, b.Upload(background(), 0, make([]byte, 64)))
			b.Close()
			_, err = vk.List()
			assert.NoError(t, err)
			assert.NoError(t, d.Close())
		}()
	}
	wg.Wait()
}

// TestCloseBeside closes what another goroutine is in calls of: these end, later ones are errors.
func TestCloseBeside(t *testing.T) {
	d := vktest.Open(t)
	for round := range 20 {
		c, x, y := newCmd(t, d), tensor(t, d, "x", 1), tensor(t, d, "y", 0)
		k := must(vk.NewKernel[axpyParams](d, "own", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}))
		began, done := make(chan bool), make(chan error)
		go func() {
			for i := 0; c.Err() == nil; i++ {
				end := c.Reorder()
				k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
				end()
				if i == 5 {
					close(began)
				}
			}
			done <- y.Upload(background(), []float32{1})
			for err := error(nil); err == nil; {
				err = y.Upload(background(), []float32{1})
			}
			close(done)
		}()
		<-began
		if round%2 == 0 {
			k.Close()
		} else {
			c.Close()
		}
		require.NoError(t, <-done)
		y.Close()
		<-done
		require.Error(t, c.Submit(background()), "Submit of what is closed")
		k.Close()
	}
}

// TestCloseWhileInUse closes a device in the middle of what others do on it: they finish, or
// are told that it is closed.
func TestCloseWhileInUse(t *testing.T) {
	for range 5 {
		d, err := vk.Open(vk.Options{Name: "in use"})
		if err != nil {
			t.Skip(err)
		}
		var begun, done sync.WaitGroup
		for w := range 6 {
			begun.Add(1)
			done.Add(1)
			go func() {
				defer done.Done()
				once := sync.OnceFunc(begun.Done)
				for {
					x, err := d.NewTensor("x", dtype.Float32, 4)
					if err == nil {
						if err = x.Upload(background(), []float32{1, 2, 3, 4}); err == nil {
							err = work(d, x, w, 1)
						}
						x.Close()
					}
					once()
					if err != nil {
						require.ErrorContains(t, err, "closed")
						return
					}
				}
			}()
		}
		begun.Wait()
		d.Close() // what is open then is reported: the others did not close it yet
		done.Wait()
		require.NoError(t, d.Close())
		_, err = d.NewCmd("late")
		wantError(t, "NewCmd", err, "is closed")
		_, err = d.NewBuffer("late", 4)
		wantError(t, "NewBuffer", err, "is closed")
	}
}

// TestTwoGoroutines uses one Cmd from two goroutines, which is an error and no crash.
func TestTwoGoroutines(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 1)
	c := newCmd(t, d)
	for range 200 {
		var both sync.WaitGroup
		for range 2 {
			both.Add(1)
			go func() {
				defer both.Done()
				for range 50 {
					k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 1}, x, y)
				}
			}()
		}
		both.Wait()
		if err := c.Submit(background()); err != nil { // else they were never there at the same time
			wantError(t, "Submit", err, "used by two goroutines at once")
			break
		}
		c.Reset()
	}
	c.Reset()
	k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 1}, x, y)
	submit(t, c)
}
