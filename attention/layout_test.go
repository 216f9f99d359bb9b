package attention

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/shaders"
)

// A layout has the mirrors of a kernel.
type layout struct {
	params, spec any
	bindings     []string
}

// with returns bindings, and behind them those of features.
func with(names []string) []string {
	return append(slices.Clone(names), "Bias", "ALiBiSlopes", "Sinks", "KeyMask", "CuSeqlensQ", "CuSeqlensKV")
}

// both adds the layouts of kernels that have a module without features and one with features.
func both[P, S any](table map[string]layout, kernels string, params P, spec S, bindings ...string) {
	for kernel := range strings.FieldsSeq(kernels) {
		table["attention_"+kernel] = layout{params, spec, bindings}
		table["attention_"+kernel+"_features"] = layout{withFeatures[P]{}, withFeatureSpec[S]{}, with(bindings)}
	}
}

// TestLayouts compares every Go mirror of this package with its shader, for
// every element type that is compiled, and wants each kernel in the table.
func TestLayouts(t *testing.T) {
	fwd := []string{"Q", "K", "V", "O", "LSE"}
	quant := append(slices.Clone(fwd), "QRows", "KScales")
	scales := []string{"KScale", "VScale"}
	appended := []string{"NewK", "NewV", "K", "V", "Q", "SeqLens", "BlockTable", "State", "Cos", "Sin", "BatchIdx"}
	decode := []string{"Q", "K", "V", "O", "LSE", "SeqLens", "BlockTable", "State", "Parts", "TreeMask", "ALiBiSlopes", "Bias", "Sinks", "LeftPad", "BatchIdx"}
	rows := []string{"Q", "K", "V", "DO", "Rows"}
	dkv, dq, scores := append(slices.Clone(rows), "DK", "DV"), append(slices.Clone(rows), "DQ"), append(slices.Clone(rows), "W", "DX")
	table := map[string]layout{}
	both(table, "fwd_coopmat2 fwd_coopmat fwd_f32x2_coopmat2 fwd_f32x2_coopmat", fwdParams{}, fwdMatrixSpec{}, fwd...)
	both(table, "fwd_scalar", fwdParams{}, fwdScalarSpec{}, fwd...)
	both(table, "fwd_quant_coopmat2 fwd_quant_coopmat", fwdParams{}, fwdMatrixQuantSpec{}, quant...)
	both(table, "fwd_quant_scalar", fwdParams{}, fwdScalarQuantSpec{}, quant...)
	both(table, "quantize", fwdParams{}, quantSpec{}, "X", "Y", "Values", "Sums")
	both(table, "unfused_scores", unfusedParams{}, unfusedScoresSpec{}, "Q", "K", "S2")
	both(table, "unfused_softmax", unfusedParams{}, unfusedSoftmaxSpec{}, "S2", "LSE")
	both(table, "unfused_values", unfusedParams{}, unfusedValuesSpec{}, "O", "V", "P")
	both(table, "unfused_keys", unfusedParams{}, unfusedKeysSpec{}, "DX", "X", "W")
	both(table, "unfused_bwd_scores", bwdHeadsParams{}, unfusedScoresSpec{}, scores...)
	both(table, "bwd_dkv_coopmat2 bwd_dkv_coopmat bwd_dkv_f32x2_coopmat2 bwd_dkv_f32x2_coopmat", bwdParams{}, bwdTurnsSpec{}, dkv...)
	both(table, "bwd_dq_coopmat2 bwd_dq_coopmat bwd_dq_f32x2_coopmat2 bwd_dq_f32x2_coopmat", bwdParams{}, bwdTurnsSpec{}, dq...)
	both(table, "bwd_dkv_scalar", bwdParams{}, bwdScalarSpec{}, dkv...)
	both(table, "bwd_dq_scalar", bwdParams{}, bwdScalarSpec{}, dq...)
	for _, row := range []struct {
		kernels string
		layout
	}{
		{"fwd_direct", layout{fwdParams{}, fwdDirectSpec{}, fwd}},
		{"combine", layout{combineParams{}, combineSpec{}, []string{"PartO", "PartML", "O", "LSE"}}},

		{"bwd_delta", layout{bwdDeltaParams{}, bwdDeltaSpec{}, []string{"O", "DO", "LSE", "DLSE", "Rows"}}},
		{"bwd_sum", layout{bwdSumParams{}, bwdSumSpec{}, []string{"Part", "Out"}}},
		{"bwd_dbias_features", layout{withFeatures[bwdHeadsParams]{}, withFeatureSpec[bwdDBiasSpec]{}, with(append(slices.Clone(rows), "Out"))}},
		{"bwd_dsinks_features", layout{withFeatures[bwdHeadsParams]{}, withFeatureSpec[bwdDSinksSpec]{}, with([]string{"Rows", "Out"})}},
		{"bwd_dq_coopmat2_stored bwd_dq_coopmat_stored", layout{bwdStoreParams{}, bwdStoreSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ", "Stored"}}},
		{"bwd_products bwd_products_packed", layout{bwdProductsParams{}, bwdProductsSpec{}, []string{"Stored", "Y", "DX", "Sums"}}},
		{"bwd_dq_coopmat2_stored_features bwd_dq_coopmat_stored_features", layout{withFeatures[bwdStoreFeaturesParams]{}, withFeatureSpec[bwdStoreSpec]{}, with([]string{"Q", "K", "V", "DO", "Rows", "DQ", "Stored"})}},
		{"bwd_products_features bwd_products_packed_features", layout{withFeatures[bwdProductsFeaturesParams]{}, withFeatureSpec[bwdProductsSpec]{}, with([]string{"Stored", "Y", "DX", "Sums"})}},
		{"bwd_dbias_stored_features", layout{withFeatures[bwdStoredBiasParams]{}, withFeatureSpec[bwdStoredBiasSpec]{}, with([]string{"Stored", "Sums", "Out"})}},
		{"bwd_fused_coopmat2 bwd_fused_coopmat", layout{bwdFusedParams{}, bwdFusedSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DK", "DV", "DQ"}}},
		{"decode decode_coopmat", layout{decodeParams{}, decodeSpec{}, decode}},
		{"decode_tiles_coopmat", layout{decodeParams{}, decodeTilesSpec{}, decode}},
		{"decode_cache8_tiles_coopmat", layout{decodeCache8Params{}, decodeCache8TilesSpec{}, append(decode, scales...)}},
		{"decode_append decode_append_coopmat", layout{stepParams{}, stepSpec{}, append(decode, "NewK", "NewV", "Cos", "Sin")}},
		{"append", layout{appendParams{}, appendSpec{}, appended}},
		{"decode_cache8 decode_cache8_coopmat", layout{decodeCache8Params{}, decodeCache8Spec{}, append(decode, scales...)}},
		{"append_cache8", layout{appendCache8Params{}, appendCache8Spec{}, append(appended, scales...)}},
		{"advance", layout{advanceParams{}, advanceSpec{}, []string{"SeqLens"}}},
	} {
		for kernel := range strings.FieldsSeq(row.kernels) {
			table["attention_"+kernel] = row.layout
		}
	}
	for _, v := range shaders.Variants() {
		if !strings.HasPrefix(v.Kernel, "attention_") {
			continue // of other packages
		}
		row, ok := table[v.Kernel]
		require.True(t, ok, "%s has no row in TestLayouts", v.Kernel)
		module, err := shaders.Get(v.Kernel, v.Type)
		require.NoError(t, err)
		maxBytes := layouttest.MaxParamsBytes
		switch {
		case strings.HasSuffix(v.Kernel, "_features"), strings.HasPrefix(v.Kernel, "attention_bwd_fused_coopmat"),
			strings.HasPrefix(v.Kernel, "attention_decode"), strings.HasPrefix(v.Kernel, "attention_append"):
			maxBytes = 256 // as feasibleFeatures, feasibleFused, feasibleStored, DecodeConfig.Feasible and appendFeasible demand
		}
		layouttest.CheckWithin(t, maxBytes, module, row.params, row.spec, row.bindings...)
	}
}
