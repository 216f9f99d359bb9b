// Package parallel spreads loops over the processors.
package parallel

import (
	"runtime"
	"sync"
)

// For calls f once for each i in [0, n), on GOMAXPROCS goroutines, and returns when all calls have.
func For(n int, f func(i int)) {
	Workers(n, func() func(i int) { return f })
}

// Workers is For with a function for each goroutine that has something to do, which newWorker makes
// there: it may keep buffers.
func Workers(n int, newWorker func() func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var work func(i int)
			for i := range next {
				if work == nil {
					work = newWorker()
				}
				work(i)
			}
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// Pieces calls f for pieces of [0, n) that follow one another, one for each of GOMAXPROCS goroutines.
func Pieces(n int, f func(from, to int)) {
	pieces := min(n, runtime.GOMAXPROCS(0))
	For(pieces, func(i int) { f(i*n/pieces, (i+1)*n/pieces) })
}
