package lm

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/files"
)

// modelsJSON has config.json of models by name.
//
//go:embed models.json
var modelsJSON []byte

// Models returns the names of the models that WriteModel and Named know.
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

// WriteModel writes a checkpoint with random weights into a folder: config.json and safetensors of at
// most shardBytes. Change sets fields of the named model's config.json, as for a small one.
func WriteModel(dir, name string, change map[string]any, format dtype.DType, shardBytes int64, w Weights) error {
	if _, err := Named(name); err != nil {
		return err
	}
	text, config, err := changed(name, change)
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err == nil {
		err = files.Write(filepath.Join(dir, configFile), text)
	}
	if err != nil {
		return err
	}
	return write(dir, config.Params(), format, shardBytes, w)
}

// changed returns the config.json of a named model with other fields.
func changed(name string, change map[string]any) (text []byte, c Config, err error) {
	fields := map[string]any{}
	if err := json.Unmarshal(models()[name], &fields); err != nil {
		return nil, c, err
	}
	maps.Copy(fields, change)
	if text, err = json.MarshalIndent(fields, "", "\t"); err == nil {
		c, err = parseConfig(text)
	}
	return text, c, err
}
