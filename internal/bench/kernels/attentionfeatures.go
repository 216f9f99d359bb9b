package kernels

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/enum"
)

// featureFlags are flags of bench for features. Command run sees the same features in the tensors
// of its file.
type featureFlags struct {
	valueDim               int
	alibi                  attention.ALiBi
	bias                   attention.Bias
	biasDType              dtype.DType
	keyMask, sinks, varlen bool
	set                    *pflag.FlagSet
}

func (b *featureFlags) add(f *pflag.FlagSet) {
	b.set = f
	IntVar(f, &b.valueDim, "value-dim", "elements of a head of V and O (default: headdim)")
	f.Var(Value[attention.ALiBi]{&b.alibi, parseALiBi, "SLOPES"}, "alibi", "subtract slope*distance, with slopes for heads (the value if none is given) or batch-heads")
	f.Lookup("alibi").NoOptDefVal = attention.ALiBiPerHead.String()
	f.Var(Value[attention.Bias]{&b.bias, parseBias, "AXES"}, "bias", "add a bias with these axes beside the keys: a comma list of batch, heads, rows; or shared, by all of them")
	f.Var(Value[dtype.DType]{&b.biasDType, ParseDType, "TYPE"}, "bias-dtype", "type of the bias: float32 (default) or that of --dtype")
	BoolVar(f, &b.keyMask, "key-mask", "hide one key in eight from all queries of a batch, at random")
	BoolVar(f, &b.sinks, "sinks", "give each head a sink")
	BoolVar(f, &b.varlen, "varlen", "pack sequences of seqlen, 3/4, 1/2 and 1/4 of it, and again")
}

func parseALiBi(text string) (attention.ALiBi, error) {
	for _, a := range []attention.ALiBi{attention.ALiBiPerHead, attention.ALiBiPerBatchHead} {
		if text == a.String() {
			return a, nil
		}
	}
	return 0, enum.NotOneOf{attention.ALiBiPerHead.String(), attention.ALiBiPerBatchHead.String()}
}

func parseBias(text string) (attention.Bias, error) {
	b := attention.Bias{On: true}
	if text == "shared" {
		return b, nil
	}
	for _, name := range strings.Split(text, ",") {
		axis, ok := map[string]*bool{"batch": &b.Batch, "heads": &b.Heads, "rows": &b.Rows}[name]
		if !ok {
			return b, fmt.Errorf("%q is not one of batch, heads, rows", name)
		}
		if *axis {
			return b, fmt.Errorf("%q occurs twice", name)
		}
		*axis = true
	}
	return b, nil
}

// apply puts the flags into p, whose sizes are known. It is an error if
// they contradict each other.
func (b *featureFlags) apply(p *attention.Problem) error {
	if b.set.Changed("value-dim") {
		if b.valueDim == 0 { // 0 would mean headdim
			return fmt.Errorf("--value-dim 0 is not positive")
		}
		p.ValueDim = b.valueDim
	}
	if b.set.Changed("bias-dtype") && !b.bias.On {
		return fmt.Errorf("--bias-dtype %v needs --bias", b.biasDType)
	}
	p.Bias = b.bias
	p.Bias.DType = b.biasDType
	p.ALiBi, p.KeyMask, p.Sinks = b.alibi, b.keyMask, b.sinks
	if !b.varlen {
		return nil
	}
	if p.Batch > maxPacked {
		return fmt.Errorf("--varlen with --batch %d is more than %d sequences", p.Batch, maxPacked)
	}
	p.Varlen = bench.Varlen(p.Batch, p.SeqQ, p.SeqKV)
	return nil
}

// maxPacked bounds the sequences of --varlen.
const maxPacked = 1 << 20
