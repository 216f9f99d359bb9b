// Package peer runs other programs that compute what a benchmark measures, so
// that their times stand beside ours.
//
// A peer is any command. It gets one [Request], a JSON object on one line, on
// its standard input, and writes JSON objects to its standard output, a line
// each:
//
//	{"about": "PyTorch 2.11.0, CUDA 13.0, NVIDIA H200"}
//	{"name": "flash", "samples_ns": [33524.8, 33501.2], "iters": 500, "output": "/tmp/…/flash.safetensors"}
//	{"name": "cudnn", "error": "No available kernel"}
//
// The first kind says what the peer is; the second is an [Answer], one for each
// of its implementations. What it writes to standard error is shown if it
// fails. It is killed when it takes too long.
//
// tools/peers/torch_sdpa.py and torch_train.py are peers.
package peer

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/flashvk/flashvk/internal/text"
)

// A Peer is a command with the name that it goes by in tables.
type Peer struct {
	Name    string
	Command string // for sh -c
}

// nameRule is what a name may be made of: it becomes a part of the names of
// benchmarks.
var nameRule = regexp.MustCompile(`^[A-Za-z0-9._+-]{1,64}$`)

// nameWords say it.
const nameWords = "made of 1 to 64 letters, digits and ._+-"

// What an answer may hold. A call takes a picosecond to a month.
const (
	maxSamples = 1_000_000
	minNS      = 1e-3
	maxNS      = 30 * 24 * 3600 * 1e9
	maxCalls   = 1_000_000_000 // Iters, and Sets
	maxPath    = 4096          // bytes
	maxText    = 300           // runes; more is cut
)

// Parse reads NAME=COMMAND.
func Parse(text string) (Peer, error) {
	name, command, found := strings.Cut(text, "=")
	switch {
	case !found || strings.TrimSpace(command) == "":
		return Peer{}, fmt.Errorf("%q is not NAME=COMMAND", text)
	case !nameRule.MatchString(name):
		return Peer{}, fmt.Errorf("the name %q is not %s", name, nameWords)
	}
	return Peer{Name: name, Command: command}, nil
}

// Version is the version of the protocol.
const Version = 2

// A Request says what to compute and how to measure it. The measurement
// follows the rules of package bench: warm up by time, then take samples,
// each the mean of a batch of calls in device time, the calls rotating through
// copies of the inputs and outputs.
type Request struct {
	Version int    `json:"version"`
	Op      string `json:"op"`   // attention, or another kernel: norm, …
	Pass    string `json:"pass"` // forward or backward

	// Params are the sizes and choices of the problem, by the keys that flashvk bench prints. A peer without
	// one of the features answers with an error.
	Params map[string]any `json:"params"`
	DType  string         `json:"dtype,omitempty"` // of a model: float16, bfloat16 or float32

	WarmupNS  float64 `json:"warmup_ns"` // least device time of the warm-up
	Warmup    int     `json:"warmup"`    // least calls of the warm-up
	Samples   int     `json:"samples"`
	SampleNS  float64 `json:"sample_ns"`  // device time that a sample should last
	MaxIters  int     `json:"max_iters"`  // most calls of a sample
	Sets      int     `json:"sets"`       // copies of inputs and outputs to rotate through
	Input     string  `json:"input"`      // safetensors file, as flashvk run OP reads it
	OutputDir string  `json:"output_dir"` // folder for an output file per implementation, as flashvk run OP writes it; "": none
}

// An Answer is what an implementation of a peer took, or why it has no times.
type Answer struct {
	Name      string    `json:"name"`
	SamplesNS []float64 `json:"samples_ns"` // device time per call
	Iters     int       `json:"iters"`      // calls of a sample
	Sets      int       `json:"sets"`       // copies that the calls rotated through
	Output    string    `json:"output"`     // file in the request's output_dir; "": none
	Note      string    `json:"note"`       // for the reader of the table
	Error     string    `json:"error"`
}

// A Reply is all that a peer said.
type Reply struct {
	About   string
	Answers []Answer
}

// check returns what is wrong with an answer.
func (a *Answer) check() error {
	if !nameRule.MatchString(a.Name) {
		return fmt.Errorf("the name %q of an answer is not %s", text.Short(a.Name, maxText), nameWords)
	}
	if a.Error != "" {
		return nil
	}
	if n := len(a.SamplesNS); n == 0 {
		return fmt.Errorf("the answer of %s has neither samples_ns nor error", a.Name)
	} else if n > maxSamples {
		return fmt.Errorf("the answer of %s has %d samples_ns, more than %d", a.Name, n, maxSamples)
	}
	for _, ns := range a.SamplesNS {
		if !(minNS <= ns && ns <= maxNS) {
			return fmt.Errorf("%s took %v ns, which is not from %v to %v", a.Name, ns, minNS, float64(maxNS))
		}
	}
	for name, n := range map[string]int{"iters": a.Iters, "sets": a.Sets} {
		if n < 0 || n > maxCalls {
			return fmt.Errorf("the answer of %s has %s=%d, which is not from 0 to %d", a.Name, name, n, maxCalls)
		}
	}
	if len(a.Output) > maxPath || text.Printable(a.Output) != a.Output {
		return fmt.Errorf("the answer of %s has an output that is no name of a file: %q", a.Name, text.Short(a.Output, maxText))
	}
	return nil
}
