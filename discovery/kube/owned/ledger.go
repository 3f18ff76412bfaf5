package owned

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// keyOfLedger is where in its ConfigMap the ledger is.
const keyOfLedger = "ledger"

// Text is one text that is kept in a ConfigMap: of two that write it, the one that has not
// read what the other wrote fails. Not safe for concurrent use.
type Text struct {
	client *Client
	name   string
	object *corev1.ConfigMap // as it was read or written last; nil: there was none
}

// Text returns that of the ConfigMap of this name in the client's namespace.
func (c *Client) Text(name string) *Text { return &Text{client: c, name: name} }

// Read reads it; empty if there is none.
func (t *Text) Read(ctx context.Context) (text string, err error) {
	err = t.client.once(ctx, "get configmap "+t.name, func(ctx context.Context) error {
		t.object, err = t.client.core.CoreV1().ConfigMaps(t.client.namespace).Get(ctx, t.name, metav1.GetOptions{})
		return err
	})
	if errors.Is(err, ErrGone) {
		t.object = nil
		return "", nil
	} else if err != nil {
		return "", err
	}
	return t.object.Data[keyOfLedger], nil
}

// Write replaces what Read has read, or Write written, also by the same. It fails with
// ErrStale if it is not that any more, and with ErrGone if there is none any more: the next Write makes
// one then.
func (t *Text) Write(ctx context.Context, text string) error {
	maps := t.client.core.CoreV1().ConfigMaps(t.client.namespace)
	return t.client.once(ctx, "write configmap "+t.name, func(ctx context.Context) error {
		next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: t.client.namespace, Name: t.name, Labels: map[string]string{ManagedByLabel: ManagedBy}}}
		write := func() (*corev1.ConfigMap, error) { return maps.Create(ctx, next, metav1.CreateOptions{}) }
		if t.object != nil {
			next = t.object.DeepCopy()
			write = func() (*corev1.ConfigMap, error) { return maps.Update(ctx, next, metav1.UpdateOptions{}) }
		}
		next.Data = map[string]string{keyOfLedger: text}
		written, err := write()
		if err == nil {
			t.object = written
		} else if apierrors.IsNotFound(err) {
			t.object = nil
		}
		return err
	})
}
