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

// TestLayouts compares every Go mirror of this package with its shader, for
// every element type that is compiled, and wants each kernel in the table.
func TestLayouts(t *testing.T) {
	features := []string{"Bias", "ALiBiSlopes", "Sinks", "KeyMask", "CuSeqlensQ", "CuSeqlensKV"}
	fwd := []string{"Q", "K", "V", "O", "LSE"}
	quant := append(slices.Clone(fwd), "QRows", "KScales")
	scales := []string{"KScale", "VScale"}
	appended := []string{"NewK", "NewV", "K", "V", "Q", "SeqLens", "BlockTable", "State", "Cos", "Sin", "BatchIdx"}
	decode := []string{"Q", "K", "V", "O", "LSE", "SeqLens", "BlockTable", "State", "Parts", "TreeMask", "ALiBiSlopes", "Bias", "Sinks", "LeftPad", "BatchIdx"}
	rows := []string{"Q", "K", "V", "DO", "Rows"}
	dkv, dq, scores := append(slices.Clone(rows), "DK", "DV"), append(slices.Clone(rows), "DQ"), append(slices.Clone(rows), "W", "DX")
	with := func(names []string) []string { return append(slices.Clone(names), features...) }
	table := map[string]layout{}
	for _, row := range []struct {
		kernels string
		layout
	}{
		{"fwd_coopmat2 fwd_coopmat fwd_f32x2_coopmat2 fwd_f32x2_coopmat", layout{fwdParams{}, fwdMatrixSpec{}, fwd}},
		{"fwd_coopmat2_features fwd_coopmat_features fwd_f32x2_coopmat2_features fwd_f32x2_coopmat_features", layout{withFeatures[fwdParams]{}, withFeatureSpec[fwdMatrixSpec]{}, with(fwd)}},
		{"fwd_scalar", layout{fwdParams{}, fwdScalarSpec{}, fwd}},
		{"fwd_scalar_features", layout{withFeatures[fwdParams]{}, withFeatureSpec[fwdScalarSpec]{}, with(fwd)}},
		{"fwd_quant_coopmat2 fwd_quant_coopmat", layout{fwdParams{}, fwdMatrixQuantSpec{}, quant}},
		{"fwd_quant_coopmat2_features fwd_quant_coopmat_features", layout{withFeatures[fwdParams]{}, withFeatureSpec[fwdMatrixQuantSpec]{}, with(quant)}},
		{"fwd_quant_scalar", layout{fwdParams{}, fwdScalarQuantSpec{}, quant}},
		{"fwd_quant_scalar_features", layout{withFeatures[fwdParams]{}, withFeatureSpec[fwdScalarQuantSpec]{}, with(quant)}},
		{"quantize", layout{fwdParams{}, quantSpec{}, []string{"X", "Y", "Values", "Sums"}}},
		{"quantize_features", layout{withFeatures[fwdParams]{}, withFeatureSpec[quantSpec]{}, with([]string{"X", "Y", "Values", "Sums"})}},
		{"fwd_direct", layout{fwdParams{}, fwdDirectSpec{}, fwd}},
		{"combine", layout{combineParams{}, combineSpec{}, []string{"PartO", "PartML", "O", "LSE"}}},
		{"unfused_scores", layout{unfusedParams{}, unfusedScoresSpec{}, []string{"Q", "K", "S2"}}},
		{"unfused_softmax", layout{unfusedParams{}, unfusedSoftmaxSpec{}, []string{"S2", "LSE"}}},
		{"unfused_values", layout{unfusedParams{}, unfusedValuesSpec{}, []string{"O", "V", "P"}}},
		{"unfused_keys", layout{unfusedParams{}, unfusedKeysSpec{}, []string{"DX", "X", "W"}}},
		{"unfused_bwd_scores", layout{bwdHeadsParams{}, unfusedScoresSpec{}, scores}},
		{"unfused_scores_features", layout{withFeatures[unfusedParams]{}, withFeatureSpec[unfusedScoresSpec]{}, with([]string{"Q", "K", "S2"})}},
		{"unfused_softmax_features", layout{withFeatures[unfusedParams]{}, withFeatureSpec[unfusedSoftmaxSpec]{}, with([]string{"S2", "LSE"})}},
		{"unfused_values_features", layout{withFeatures[unfusedParams]{}, withFeatureSpec[unfusedValuesSpec]{}, with([]string{"O", "V", "P"})}},
		{"unfused_keys_features", layout{withFeatures[unfusedParams]{}, withFeatureSpec[unfusedKeysSpec]{}, with([]string{"DX", "X", "W"})}},
		{"unfused_bwd_scores_features", layout{withFeatures[bwdHeadsParams]{}, withFeatureSpec[unfusedScoresSpec]{}, with(scores)}},

		{"bwd_delta", layout{bwdDeltaParams{}, bwdDeltaSpec{}, []string{"O", "DO", "LSE", "DLSE", "Rows"}}},
		{"bwd_sum", layout{bwdSumParams{}, bwdSumSpec{}, []string{"Part", "Out"}}},
		{"bwd_dkv_coopmat2 bwd_dkv_coopmat bwd_dkv_f32x2_coopmat2 bwd_dkv_f32x2_coopmat", layout{bwdParams{}, bwdTurnsSpec{}, dkv}},
		{"bwd_dq_coopmat2 bwd_dq_coopmat bwd_dq_f32x2_coopmat2 bwd_dq_f32x2_coopmat", layout{bwdParams{}, bwdTurnsSpec{}, dq}},
		{"bwd_dkv_scalar", layout{bwdParams{}, bwdScalarSpec{}, dkv}},
		{"bwd_dq_scalar", layout{bwdParams{}, bwdScalarSpec{}, dq}},
		{"bwd_dkv_coopmat2_features bwd_dkv_coopmat_features bwd_dkv_f32x2_coopmat2_features bwd_dkv_f32x2_coopmat_features", layout{withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, with(dkv)}},
		{"bwd_dq_coopmat2_features bwd_dq_coopmat_features bwd_dq_f32x2_coopmat2_features bwd_dq_f32x2_coopmat_features", layout{withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, with(dq)}},
		{"bwd_dkv_scalar_features", layout{withFeatures[bwdParams]{}, withFeatureSpec[bwdScalarSpec]{}, with(dkv)}},
		{"bwd_dq_scalar_features", layout{withFeatures[bwdParams]{}, withFeatureSpec[bwdScalarSpec]{}, with(dq)}},
		{"bwd_dbias_features", layout{withFeatures[bwdHeadsParams]{}, withFeatureSpec[bwdDBiasSpec]{}, with(append(slices.Clone(rows), "Out"))}},
		{"bwd_dsinks_features", layout{withFeatures[bwdHeadsParams]{}, withFeatureSpec[bwdDSinksSpec]{}, with([]string{"Rows", "Out"})}},
		{"bwd_dq_coopmat2_stored bwd_dq_coopmat_stored", layout{bwdStoreParams{}, bwdStoreSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ", "Stored"}}},
		{"bwd_products bwd_products_packed", layout{bwdProductsParams{}, bwdProductsSpec{}, []string{"Stored", "Y", "DX", "Sums"}}},
		{"bwd_dq_coopmat2_stored_features bwd_dq_coopmat_stored_features", layout{withFeatures[bwdStoreFeaturesParams]{}, withFeatureSpec[bwdStoreSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DQ", "Stored"}, features...)}},
		{"bwd_products_features bwd_products_packed_features", layout{withFeatures[bwdProductsFeaturesParams]{}, withFeatureSpec[bwdProductsSpec]{}, append([]string{"Stored", "Y", "DX", "Sums"}, features...)}},
		{"bwd_dbias_stored_features", layout{withFeatures[bwdStoredBiasParams]{}, withFeatureSpec[bwdStoredBiasSpec]{}, append([]string{"Stored", "Sums", "Out"}, features...)}},
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
