package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// podEnvironment is what the chart's pods are told by Kubernetes and no value says.
var podEnvironment = []string{"ISTHMUS_GATEWAY_NAME=isthmus-gateway-0", "ISTHMUS_DIAL_FROM=192.0.2.1", "NODE_NAME=node-0", "POD_NAME=isthmus-controller-0"}

// podAPI stands for the API server that a pod would find.
const podAPI = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`

// chart checks values: helm renders the chart, whose schema and templates refuse some, and the
// programs read the configurations that come out. The errors are of programs that could not be
// run.
func (c *checkup) chart(ctx context.Context, f offline) (errs []error) {
	args := []string{"template", "isthmus", f.chart}
	for _, v := range f.values {
		args = append(args, "--values", v)
	}
	where := "values " + strings.Join(f.values, " ")
	out, said, mistakes, err := runCheck(ctx, nil, f.helm, args...)
	if err != nil {
		return []error{fmt.Errorf("--values: %w: name helm with --helm", err)}
	}
	if mistakes {
		c.add(checkValues, where, checkBad, said)
		return nil
	}
	c.add(checkValues, where, checkBad, "") // what helm says beside is no mistake
	rendered := len(c.all) - 1
	configs, err := configsOf(out)
	if err != nil {
		return []error{fmt.Errorf("--values: what %s template prints: %w", f.helm, err)}
	}
	read := []string{}
	for _, kind := range kindsOfConfig {
		text, there := configs[kind+".yaml"]
		if !there {
			continue
		}
		said, mistakes, err := asInPod(ctx, kind, text)
		switch {
		case errors.Is(err, exec.ErrNotFound):
			c.all[rendered].Seen = append(c.all[rendered].Seen, fmt.Sprintf("not checked: whether %s takes its configuration: install %[1]s beside isthmus, or in PATH", kind))
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("--values: %s of the chart: %w", kind, err))
			continue
		}
		level := checkWarning
		if mistakes {
			level = checkBad
		}
		c.at(kind+".yaml of "+where, &place{program: kind})
		c.add(checkConfig, kind+".yaml of "+where, level, said)
		read = append(read, kind+".yaml")
	}
	seen := "checked: " + strings.Join(append([]string{"values.schema.json and the templates of " + f.chart}, read...), ", ")
	c.all[rendered].Seen = append([]string{seen, "not checked: what only a cluster knows, such as images, classes of load balancers and files of Secrets"}, c.all[rendered].Seen...)
	return errs
}

// configsOf are the configurations of programs in rendered manifests, by their file.
func configsOf(manifests []byte) (map[string]string, error) {
	out := map[string]string{}
	for d := yaml.NewDecoder(bytes.NewReader(manifests)); ; {
		var o struct {
			Kind string
			Data map[string]string
		}
		var odd *yaml.TypeError // another kind has other data
		if err := d.Decode(&o); err != nil && !errors.As(err, &odd) {
			if errors.Is(err, io.EOF) {
				return out, nil
			}
			return nil, err
		}
		for name, text := range o.Data {
			if kind, ok := strings.CutSuffix(name, ".yaml"); ok && o.Kind == "ConfigMap" && slices.Contains(kindsOfConfig, kind) {
				out[name] = text
			}
		}
	}
}

// asInPod has a program check a configuration with the environment, the volumes and the API
// server of a pod: what is missing here is none of the values' business.
func asInPod(ctx context.Context, kind, text string) (said string, mistakes bool, err error) {
	dir, err := os.MkdirTemp("", "isthmus-check-")
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(dir)
	api, path := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, kind+".yaml")
	text = strings.ReplaceAll(text, "inCluster: true", "kubeconfig: "+api)
	text = strings.ReplaceAll(text, "/var/lib/isthmus", dir)
	text = strings.ReplaceAll(text, "/host/proc", "/proc")
	if err := errors.Join(os.WriteFile(api, []byte(podAPI), 0o600), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		return "", false, err
	}
	_, said, mistakes, err = runCheck(ctx, podEnvironment, beside(kind), "--config", path, "--check-config")
	said = strings.ReplaceAll(said, path, kind+".yaml as rendered")
	return strings.ReplaceAll(said, dir, "/var/lib/isthmus"), mistakes, err
}
