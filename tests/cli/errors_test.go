package cli

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/vk"
)

// TestErrors wants a mistake to give one line on standard error, an exit status, and nothing on
// standard output. It has one mistake of each kind; TestErrors of package main has all mistakes
// that show without a device.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "none")
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("no tensors\n"), 0o600))
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", 2, "a command is missing"},
		{"frobnicate", 2, `"frobnicate" is not one of the commands`},
		{"bench atention", 2, `bench: "atention" is not one of the commands`},
		{"devices --yaml", 2, "unknown flag: --yaml"},
		{"devices x", 2, `argument "x" is not expected`},
		{"bench attention --batch", 2, "flag needs an argument: --batch"},
		{"bench attention --batch 0", 2, "batch=0 is not positive"},
		{"bench attention --headdim 264", 2, "head_dim=264 is larger than 256"},
		{"bench attention --dtype float8", 2, "not one of float16, bfloat16, float32"},
		{"bench attention --suite all", 2, `"all" for "--suite" flag: not one of `},
		{"bench gemm --m 0", 2, "m=0 is not from 1 to"},
		{"tune attention --budget 0s", 2, "--budget 0s is not positive"},
		{"selftest --random 0", 2, "--random 0 is not positive"},
		{"run attention", 2, "run attention needs --in FILE"},
		{"run attention --in " + none + " --out " + none, 1, none + ": no such file or directory"},
		{"run attention --in " + text + " --out " + none, 1, text + ": "},
		{"run attention --in " + dir + " --out " + none, 1, dir + ": is a directory"},
		{"bench compare " + none + " " + none, 1, none + ": no such file or directory"},
		{"plot " + none + " --out " + dir, 1, none + ": no such file or directory"},
		{"bench attention --out " + text + "/x", 1, text},
		{"train --batches 0", 2, "train: --batches 0 is not positive"},
		{"train --steps -1", 2, "train: steps=-1 is not from 1 to "},
		{"train --lr NaN", 2, "train: lr=NaN is not positive and at most 1"},
		{"train --clip -1", 2, "train: clip=-1 is negative or not finite"},
		{"train --accumulate 65537", 2, "tnp: accumulate=65537 is not from 0 to 65536"},
		{"train --accumulate 0", 2, "train: --accumulate 0 is not positive"},
		{"train --warmup 2000", 2, "train: warmup=2000 is not from 0 to steps=1000"},
		{"train --weight-decay NaN", 2, "optim: weight_decay=NaN is not a finite number from 0 on"},
		{"train --loss-scale 3", 2, "tnp: loss_scale=3 is not a power of two from 2^-20 to 2^40"},
		{"train --loss-scale -1", 2, "tnp: loss_scale=-1 is not a power of two from 2^-20 to 2^40"},
		{"train --save-every 3", 2, "train: save_every is given, but no file to save to"},
		{"train --save-every 0 --save x", 2, "train: --save-every 0 is not positive"},
		{"train --seed -1", 2, `invalid argument "-1" for "--seed" flag: not an integer from 0 on`},
		{"train --seed 99999999999999999999", 2, `for "--seed" flag: out of range`},
		{"train --lr x", 2, `invalid argument "x" for "--lr" flag: not a number`},
		{"train --warmup 3.5", 2, `invalid argument "3.5" for "--warmup" flag: not an integer`},
		{"train --loss-scale 0", 2, "train: --loss-scale 0 is not a power of two"},
		{"train --dtype int8", 2, "not one of float16, bfloat16, float32"},
		{"train --variant all", 2, "not one of auto, unfused, separate, fused"},
		{"train --context 0", 2, "tnp: context=0 is not from 1 to 16777216"},
		{"train --beside a=b", 2, "train: another log is to be drawn beside, but there is no curve"},
		{"train --data " + none, 1, none + ": no such file or directory"},
		{"train --data " + text, 1, text + ": "},
		{"train --start " + text + " --heads 8", 1, text + ": "},
		{"bench train --count 0", 2, "--count 0 is not in 1..100000"},
		{"bench train --shape huge", 2, `"huge" is not one of tiny, small, mid, large`},
		{"bench train --recording never", 2, `"never" is not one of once, fresh`},
		{"bench train --headdim 12", 2, "tnp: head_dim=12 is not a multiple of 8"},
		{"bench train --out " + text + "/x", 1, text},
		{"run model", 2, "run model needs --in FILE"},
		{"run model --in " + text + " --out " + none + " --context 1", 1, text + ": "},
	} {
		code, stdout, stderr := flashvk(t, strings.Fields(c.args)...)
		require.Equal(t, c.code, code, "%s: %s", c.args, stderr)
		require.Empty(t, stdout, c.args)
		require.Contains(t, stderr, c.want, c.args)
		require.Equal(t, stderr, oneError(t, stderr)+"\n", "%s: more than one line", c.args)
	}
	require.NoFileExists(t, none)
}

// TestNoDevice wants one line and status 1 for a device that does not exist, and for a machine
// without any.
func TestNoDevice(t *testing.T) {
	device(t)
	for _, args := range []string{"bench attention --device nosuch", "bench norm --device 99", "selftest --device nosuch", "tune gemm --device nosuch"} {
		words := strings.Fields(args)
		code, stdout, stderr := flashvk(t, words...)
		require.Equal(t, 1, code, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, `device "`+words[3-len(words)%2]+`" is not among 0 "`, args)
		require.Equal(t, stderr, oneError(t, stderr)+"\n", args)
	}
	p := prepare(t, "devices")
	p.cmd.Env = append(os.Environ(), "VK_DRIVER_FILES=/nonexistent.json", "VK_ICD_FILENAMES=/nonexistent.json", "FLASHVK_DRIVER=")
	require.Equal(t, 1, p.start().wait(), p.stderr.String())
	require.Empty(t, p.stdout.String())
	require.Contains(t, oneError(t, p.stderr.String()), "no Vulkan device")
}

// TestStreams wants only results on standard output; notes go to standard error.
func TestStreams(t *testing.T) {
	caps, dev := device(t)
	dir := t.TempDir()
	for _, c := range []struct {
		args  []string
		check func(stdout string) error
		notes bool
	}{
		{[]string{"version"}, nil, false},
		{[]string{"bench", "attention", "--help"}, nil, false},
		{[]string{"devices"}, nil, false},
		{[]string{"devices", "--json"}, isJSON, false},
		{small(dev), nil, false},
		{small(dev, "--format=json"), isJSON, true},
		{small(dev, "--format=csv"), isCSV, true},
		{small(dev, "--format=benchfmt"), nil, true},
		{small(dev, "--out", dir), nil, true},
		{[]string{"bench", "norm", dev, "--rows=4", "--cols=32", "--count=1", "--iters=1", "--format=csv"}, isCSV, true},
		{[]string{"selftest", dev, "--random=2", "--kernel=optim"}, nil, true},
	} {
		code, stdout, stderr := flashvk(t, c.args...)
		require.Zero(t, code, "%q: %s", c.args, stderr)
		require.NotEmpty(t, stdout, "%q", c.args)
		require.NotContains(t, stdout, "flashvk: ", "%q: a note among the results", c.args)
		if c.check != nil {
			require.NoError(t, c.check(stdout), "%q:\n%s", c.args, stdout)
		}
		switch {
		case c.notes:
			oneError(t, stderr)
		case caps.Type == vk.CPU: // drivers of GPUs may say something
			require.Empty(t, stderr, "%q", c.args)
		}
	}
}

func isJSON(text string) error {
	var any any
	return json.Unmarshal([]byte(text), &any)
}

func isCSV(text string) error {
	_, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	return err
}
