package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

const (
	// MaxText bounds what is told of one policy: some 500 principals. Of a longer one its rules are not
	// told, so that as an ALLOW policy it allows nothing, and as a DENY policy denies everything.
	MaxText = 64 << 10
	// MaxOfNamespace bounds the policies of one namespace: the lengths of their texts, and 512 bytes
	// for each. Beyond it all that is for their workloads is denied: who may write policies in one
	// namespace is not to fill what others need.
	MaxOfNamespace = 2 << 20
	costOfPolicy   = 512
)

// Write returns what counts of an object as JSON: what has the same text is the same policy, and Read
// returns what has it.
func Write(tree map[string]any) string {
	metadata, _ := plainTree(tree["metadata"]).(map[string]any)
	kept := map[string]any{}
	for _, k := range []string{"name", "namespace", "creationTimestamp"} {
		if v := metadata[k]; v != nil {
			kept[k] = v
		}
	}
	if a, is := metadata["annotations"].(map[string]any); is && a[dryRun] != nil {
		kept["annotations"] = map[string]any{dryRun: a[dryRun]}
	} else if metadata["annotations"] != nil && !is {
		kept["annotations"] = metadata["annotations"]
	}
	out := map[string]any{"metadata": kept}
	if metadata == nil && tree["metadata"] != nil {
		out["metadata"] = plainTree(tree["metadata"])
	}
	for k, v := range tree {
		if k != "metadata" && k != "status" && v != nil {
			out[k] = plainTree(v)
		}
	}
	text, ok := marshal(out)
	switch {
	case !ok:
		return Closed(NameOf(tree), "no JSON")
	case len(text) <= MaxText:
		return text
	}
	spec, _ := out["spec"].(map[string]any)
	short := map[string]any{"rules": tooLong, "action": spec["action"], "selector": spec["selector"]}
	if out["kind"] == KindPeerAuthentication {
		short = map[string]any{"mtls": tooLong, "selector": spec["selector"]}
	}
	out["spec"] = short
	if text, _ = marshal(out); len(text) <= MaxText {
		return text
	}
	return Closed(NameOf(tree), tooLong)
}

const tooLong = "longer than 64 KiB"

// marshal fails for what JSON has no word for, as YAML has for what is not a number.
func marshal(v any) (text string, ok bool) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err == nil
}

// Closed is the text of a policy in the place of one that cannot be told: it denies everything to the
// workloads of its namespace. why stands behind its name.
func Closed(n Name, why string) string {
	if n.Namespace == "" {
		n.Namespace = defaultNamespace
	}
	text, _ := marshal(map[string]any{"apiVersion": group + "/v1", "kind": KindAuthorization,
		"metadata": map[string]any{"namespace": n.Namespace, "name": n.Name + " (" + why + ")"}, "spec": map[string]any{"action": "DENY", "rules": []any{map[string]any{}}}})
	return text
}

// Read returns the object of a text, for Parse.
func Read(text string) (map[string]any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("read a policy: %w", err)
	}
	tree, ok := plainTree(v).(map[string]any)
	if !ok || d.More() {
		return nil, fmt.Errorf("read a policy: it is no object of JSON")
	}
	return tree, nil
}

// plainTree is v with keys that are texts, and whole numbers as int64, as decoders of Kubernetes have
// them.
func plainTree(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = plainTree(x)
		}
		return out
	case map[any]any:
		out := textKeys(v)
		for k, x := range out {
			out[k] = plainTree(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = plainTree(x)
		}
		return out
	case int:
		return int64(v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	case time.Time:
		return v.Format(time.RFC3339Nano)
	}
	return v
}
