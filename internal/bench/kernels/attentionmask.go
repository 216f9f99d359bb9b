package kernels

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/enum"
)

// maskFlags are the flags that bench and run share: the choices that no tensor shows.
type maskFlags struct {
	scoreFlags
	align   attention.Align
	dropout float64
	seed    uint64
}

// scoreFlags are the maskFlags that decoding has, too.
type scoreFlags struct {
	causal  bool
	scale   float64
	window  attention.Window
	softcap float64
	set     *pflag.FlagSet
}

// add adds the flags but --causal.
func (s *scoreFlags) add(f *pflag.FlagSet) {
	s.set = f
	f.Var(Value[float64]{&s.scale, ParseFloat, "F"}, "scale", "factor of the scores (default 1/√headdim)")
	f.Var(Value[attention.Window]{&s.window, parseWindow, "L,R"}, "window", "hide keys more than L before or R after each query's own; -1 is unlimited")
	f.Var(Value[float64]{&s.softcap, ParseFloat, "F"}, "softcap", "replace each score x by F*tanh(x/F)")
}

// apply puts the flags into p. It is an error if they contradict each other.
func (s *scoreFlags) apply(p *attention.Problem) error {
	switch {
	case s.set.Changed("scale") && s.scale == 0:
		return fmt.Errorf("--scale 0 is not possible; leave it out for the default, 1/√headdim")
	case s.set.Changed("softcap") && s.softcap == 0:
		return fmt.Errorf("--softcap 0 is not possible; leave it out for none")
	}
	p.Causal, p.Scale, p.Window, p.Softcap = s.causal, s.scale, s.window, s.softcap
	return nil
}

func (m *maskFlags) add(f *pflag.FlagSet) {
	BoolVar(f, &m.causal, "causal", "hide the keys after each query")
	f.Var(Value[attention.Align]{&m.align, parseAlign, "CORNER"}, "causal-align", "corner that the causal mask, the window and ALiBi are aligned to: bottom-right (default) or top-left")
	m.scoreFlags.add(f)
	f.Var(Value[float64]{&m.dropout, ParseFloat, "P"}, "dropout", "drop each weight with probability P; needs --seed")
	f.Var(Value[uint64]{&m.seed, parseSeed, "N"}, "seed", "seed of the dropout")
}

func parseAlign(text string) (attention.Align, error) {
	a, err := attention.ParseAlign(text)
	if err != nil {
		return 0, enum.NotOneOf{"bottom-right", "top-left"}
	}
	return a, nil
}

// parseWindow reads two numbers of keys. A window that is unlimited to both
// sides is none.
func parseWindow(text string) (attention.Window, error) {
	left, right, ok := strings.Cut(text, ",")
	l, errLeft := ParseInt(left)
	r, errRight := ParseInt(right)
	switch {
	case !ok:
		return attention.Window{}, errors.New("not two numbers L,R")
	case errors.Join(errLeft, errRight) != nil:
		return attention.Window{}, errors.New("not two integers L,R")
	case l == attention.Unlimited && r == attention.Unlimited:
		return attention.Window{}, nil
	}
	return attention.Window{On: true, Left: l, Right: r}, nil
}

func parseSeed(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, errors.New("not an integer from 0 to 2^64-1")
	}
	return n, nil
}

// apply puts the flags into p. It is an error if they contradict each other.
func (m *maskFlags) apply(p *attention.Problem) error {
	switch {
	case m.dropout != 0 && !m.set.Changed("seed"):
		return fmt.Errorf("--dropout %v needs --seed", m.dropout)
	case m.set.Changed("seed") && !m.set.Changed("dropout"):
		return fmt.Errorf("--seed %d needs --dropout", m.seed)
	}
	if err := m.scoreFlags.apply(p); err != nil {
		return err
	}
	p.CausalAlign = m.align
	p.Dropout = attention.Dropout{P: m.dropout, Seeded: m.set.Changed("seed"), Seed: m.seed}
	// These flags are wrong whatever the tensors are. Whether there is something to align shows
	// later, since ALiBi is a tensor.
	least := *p
	least.Batch, least.NumHeads, least.NumKVHeads, least.SeqQ, least.SeqKV, least.HeadDim = 1, 1, 1, 1, 1, attention.HeadDimMultiple
	least.ALiBi = attention.ALiBiPerHead
	least.ValueDim, least.Bias, least.Varlen = 0, attention.Bias{}, attention.Varlen{}
	if err := least.Validate(); err != nil {
		return err
	}
	return nil
}

// checkAlign returns an error if --causal-align is given and p has nothing that it aligns. It is
// called when all of p is known.
func (m *maskFlags) checkAlign(p *attention.Problem) error {
	if m.set.Changed("causal-align") && !p.Causal && !p.Window.On && p.ALiBi == attention.ALiBiOff {
		return fmt.Errorf("--causal-align %v needs --causal, --window or ALiBi's slopes", m.align)
	}
	return nil
}
