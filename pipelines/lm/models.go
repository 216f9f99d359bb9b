package lm

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// modelsJSON has config.json of models by name.
//
//go:embed models.json
var modelsJSON []byte

// Models returns the names of the models that Named knows.
func Models() []string { return slices.Sorted(maps.Keys(models())) }

func models() map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(modelsJSON, &m); err != nil {
		panic("lm: models.json is not JSON")
	}
	return m
}

// Named returns the configuration of a model by name.
func Named(name string) (Config, error) {
	text, ok := models()[name]
	if !ok {
		return Config{}, fmt.Errorf("lm: model %q is none of %s", name, strings.Join(Models(), ", "))
	}
	return parseConfig(text)
}
