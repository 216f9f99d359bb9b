package trial

import "time"

// A Failure is a problem that is wrong.
type Failure struct {
	Kernel   string
	Number   int    // of the problem in its seed
	Problem  string // its JSON, as --problem takes it
	What     string // is wrong with it
	Smallest string // JSON of the smallest problem found that is wrong as well
	Smaller  string // what is wrong with that
}

// A Module is a SPIR-V module that problems ran.
type Module struct {
	Name     string
	SHA256   string         // of the SPIR-V, in hexadecimal
	Problems map[string]int // problems that ran it and were right, by kernel
	Failed   int            // problems that ran it and were wrong
}

// A Result is the outcome of Run.
type Result struct {
	Seed     uint64
	Problems int            // checked, right or wrong
	Kernels  map[string]int // how many of them, by kernel
	Refused  int            // drawn, but not supported on the device
	Failures []Failure
	Modules  []Module // by name
	Took     time.Duration
}
