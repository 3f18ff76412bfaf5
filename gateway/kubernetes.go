package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/internal/admin"
)

// confirmTimeout bounds how long an operator waits for the cluster's source.
const confirmTimeout = 10 * time.Second

func (g *Gateway) confirmKubernetes(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	if id == "" {
		admin.Fail(w, http.StatusBadRequest, errors.New("id: must be set: give ?id= with the name of what is held, which `GET /state` has as kubernetes.held and the log as confirm"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), confirmTimeout)
	defer cancel()
	switch err := g.kube.Confirm(ctx, id); {
	case errors.Is(err, kube.ErrNotHeld):
		admin.Fail(w, http.StatusConflict, err)
	case err != nil:
		admin.Fail(w, http.StatusServiceUnavailable, err)
	default:
		admin.Answer(w, http.StatusOK, g.kube.Status())
	}
}
