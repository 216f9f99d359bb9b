package attention

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/shaders"
)

// TestLayouts compares every Go mirror of this package with its shader, for
// every element type that is compiled, and wants each kernel in the table.
func TestLayouts(t *testing.T) {
	features := []string{"Bias", "ALiBiSlopes", "Sinks", "KeyMask", "CuSeqlensQ", "CuSeqlensKV"}
	fwd := []string{"Q", "K", "V", "O", "LSE"}
	scales := []string{"KScale", "VScale"}
	appended := []string{"NewK", "NewV", "K", "V", "Q", "SeqLens", "BlockTable", "State", "Cos", "Sin", "BatchIdx"}
	decode := []string{"Q", "K", "V", "O", "LSE", "SeqLens", "BlockTable", "State", "Parts", "TreeMask", "ALiBiSlopes", "Bias", "Sinks", "LeftPad", "BatchIdx"}
	table := map[string]struct {
		params, spec any
		bindings     []string
	}{
		"attention_fwd_coopmat2":                {fwdParams{}, fwdMatrixSpec{}, fwd},
		"attention_fwd_coopmat":                 {fwdParams{}, fwdMatrixSpec{}, fwd},
		"attention_fwd_f32x2_coopmat2":          {fwdParams{}, fwdMatrixSpec{}, fwd},
		"attention_fwd_f32x2_coopmat":           {fwdParams{}, fwdMatrixSpec{}, fwd},
		"attention_fwd_scalar":                  {fwdParams{}, fwdScalarSpec{}, fwd},
		"attention_fwd_coopmat2_features":       {withFeatures[fwdParams]{}, withFeatureSpec[fwdMatrixSpec]{}, append(fwd, features...)},
		"attention_fwd_coopmat_features":        {withFeatures[fwdParams]{}, withFeatureSpec[fwdMatrixSpec]{}, append(fwd, features...)},
		"attention_fwd_f32x2_coopmat2_features": {withFeatures[fwdParams]{}, withFeatureSpec[fwdMatrixSpec]{}, append(fwd, features...)},
		"attention_fwd_f32x2_coopmat_features":  {withFeatures[fwdParams]{}, withFeatureSpec[fwdMatrixSpec]{}, append(fwd, features...)},
		"attention_fwd_scalar_features":         {withFeatures[fwdParams]{}, withFeatureSpec[fwdScalarSpec]{}, append(fwd, features...)},
		"attention_fwd_direct":                  {fwdParams{}, fwdDirectSpec{}, fwd},
		"attention_combine":                     {combineParams{}, combineSpec{}, []string{"PartO", "PartML", "O", "LSE"}},
		"attention_unfused_scores":              {unfusedParams{}, unfusedScoresSpec{}, []string{"Q", "K", "S2"}},
		"attention_unfused_softmax":             {unfusedParams{}, unfusedSoftmaxSpec{}, []string{"S2", "LSE"}},
		"attention_unfused_values":              {unfusedParams{}, unfusedValuesSpec{}, []string{"O", "V", "P"}},

		"attention_unfused_scores_features":  {withFeatures[unfusedParams]{}, withFeatureSpec[unfusedScoresSpec]{}, append([]string{"Q", "K", "S2"}, features...)},
		"attention_unfused_softmax_features": {withFeatures[unfusedParams]{}, withFeatureSpec[unfusedSoftmaxSpec]{}, append([]string{"S2", "LSE"}, features...)},
		"attention_unfused_values_features":  {withFeatures[unfusedParams]{}, withFeatureSpec[unfusedValuesSpec]{}, append([]string{"O", "V", "P"}, features...)},

		"attention_bwd_dkv_coopmat2": {bwdParams{}, bwdTurnsSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}},
		"attention_bwd_dkv_coopmat":  {bwdParams{}, bwdTurnsSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}},
		"attention_bwd_dq_coopmat2":  {bwdParams{}, bwdTurnsSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ"}},
		"attention_bwd_dq_coopmat":   {bwdParams{}, bwdTurnsSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ"}},

		"attention_bwd_dkv_f32x2_coopmat2": {bwdParams{}, bwdTurnsSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}},
		"attention_bwd_dkv_f32x2_coopmat":  {bwdParams{}, bwdTurnsSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}},
		"attention_bwd_dq_f32x2_coopmat2":  {bwdParams{}, bwdTurnsSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ"}},
		"attention_bwd_dq_f32x2_coopmat":   {bwdParams{}, bwdTurnsSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ"}},

		"attention_bwd_dq_coopmat2_stored":  {bwdStoreParams{}, bwdStoreSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ", "Stored"}},
		"attention_bwd_dq_coopmat_stored":   {bwdStoreParams{}, bwdStoreSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ", "Stored"}},
		"attention_bwd_products":            {bwdProductsParams{}, bwdProductsSpec{}, []string{"Stored", "Y", "DX", "Sums"}},
		"attention_bwd_products_fragmented": {bwdProductsParams{}, bwdProductsSpec{}, []string{"Stored", "Y", "DX", "Sums"}},

		"attention_bwd_dq_coopmat2_stored_features":  {withFeatures[bwdStoreFeaturesParams]{}, withFeatureSpec[bwdStoreSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DQ", "Stored"}, features...)},
		"attention_bwd_dq_coopmat_stored_features":   {withFeatures[bwdStoreFeaturesParams]{}, withFeatureSpec[bwdStoreSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DQ", "Stored"}, features...)},
		"attention_bwd_products_features":            {withFeatures[bwdProductsFeaturesParams]{}, withFeatureSpec[bwdProductsSpec]{}, append([]string{"Stored", "Y", "DX", "Sums"}, features...)},
		"attention_bwd_products_fragmented_features": {withFeatures[bwdProductsFeaturesParams]{}, withFeatureSpec[bwdProductsSpec]{}, append([]string{"Stored", "Y", "DX", "Sums"}, features...)},

		"attention_bwd_dbias_stored_features": {withFeatures[bwdStoredBiasParams]{}, withFeatureSpec[bwdStoredBiasSpec]{}, append([]string{"Stored", "Sums", "Out"}, features...)},

		"attention_bwd_fused_coopmat2": {bwdFusedParams{}, bwdFusedSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DK", "DV", "DQ"}},
		"attention_bwd_fused_coopmat":  {bwdFusedParams{}, bwdFusedSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DK", "DV", "DQ"}},
		"attention_bwd_fused_sum":      {bwdFusedSumParams{}, bwdFusedSumSpec{}, []string{"PartDQ", "DQ"}},

		"attention_bwd_delta":      {bwdDeltaParams{}, bwdDeltaSpec{}, []string{"O", "DO", "LSE", "DLSE", "Rows"}},
		"attention_bwd_dkv_scalar": {bwdParams{}, bwdScalarSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}},
		"attention_bwd_dq_scalar":  {bwdParams{}, bwdScalarSpec{}, []string{"Q", "K", "V", "DO", "Rows", "DQ"}},

		"attention_bwd_dkv_coopmat2_features":       {withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}, features...)},
		"attention_bwd_dkv_coopmat_features":        {withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}, features...)},
		"attention_bwd_dkv_f32x2_coopmat2_features": {withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}, features...)},
		"attention_bwd_dkv_f32x2_coopmat_features":  {withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}, features...)},
		"attention_bwd_dq_coopmat2_features":        {withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DQ"}, features...)},
		"attention_bwd_dq_coopmat_features":         {withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DQ"}, features...)},
		"attention_bwd_dq_f32x2_coopmat2_features":  {withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DQ"}, features...)},
		"attention_bwd_dq_f32x2_coopmat_features":   {withFeatures[bwdParams]{}, withFeatureSpec[bwdTurnsSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DQ"}, features...)},
		"attention_bwd_dkv_scalar_features":         {withFeatures[bwdParams]{}, withFeatureSpec[bwdScalarSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DK", "DV"}, features...)},
		"attention_bwd_dq_scalar_features":          {withFeatures[bwdParams]{}, withFeatureSpec[bwdScalarSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "DQ"}, features...)},
		"attention_bwd_dbias_features":              {withFeatures[bwdHeadsParams]{}, withFeatureSpec[bwdDBiasSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "Out"}, features...)},
		"attention_bwd_dsinks_features":             {withFeatures[bwdHeadsParams]{}, withFeatureSpec[bwdDSinksSpec]{}, append([]string{"Rows", "Out"}, features...)},
		"attention_unfused_bwd_scores":              {bwdHeadsParams{}, unfusedBwdScoresSpec{}, []string{"Q", "K", "V", "DO", "Rows", "W", "DX"}},
		"attention_unfused_bwd_scores_features":     {withFeatures[bwdHeadsParams]{}, withFeatureSpec[unfusedBwdScoresSpec]{}, append([]string{"Q", "K", "V", "DO", "Rows", "W", "DX"}, features...)},
		"attention_unfused_keys":                    {unfusedParams{}, unfusedKeysSpec{}, []string{"DX", "X", "W"}},
		"attention_unfused_keys_features":           {withFeatures[unfusedParams]{}, withFeatureSpec[unfusedKeysSpec]{}, append([]string{"DX", "X", "W"}, features...)},

		"attention_decode":                {decodeParams{}, decodeSpec{}, decode},
		"attention_decode_coopmat":        {decodeParams{}, decodeSpec{}, decode},
		"attention_decode_append":         {stepParams{}, stepSpec{}, append(decode, "NewK", "NewV", "Cos", "Sin")},
		"attention_decode_append_coopmat": {stepParams{}, stepSpec{}, append(decode, "NewK", "NewV", "Cos", "Sin")},
		"attention_append":                {appendParams{}, appendSpec{}, appended},
		"attention_decode_cache8":         {decodeCache8Params{}, decodeCache8Spec{}, append(decode, scales...)},
		"attention_decode_cache8_coopmat": {decodeCache8Params{}, decodeCache8Spec{}, append(decode, scales...)},
		"attention_append_cache8":         {appendCache8Params{}, appendCache8Spec{}, append(appended, scales...)},
		"attention_advance":               {advanceParams{}, advanceSpec{}, []string{"SeqLens"}},

		"attention_bwd_sum": {bwdSumParams{}, bwdSumSpec{}, []string{"Part", "Out"}},
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
