package boundtoken

import (
	"context"
	"fmt"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
)

// API is the API server, as far as tokens go. Safe for concurrent use.
type API interface {
	// Review asks whether the token is one, and for the audience.
	Review(ctx context.Context, token, audience string) (authnv1.TokenReviewStatus, error)
	// Keys returns the discovery document of the issuer, and the keys that sign tokens.
	Keys(ctx context.Context) (configuration, set []byte, err error)
}

// Where an API server publishes what its tokens are verified by.
const (
	configurationPath = "/.well-known/openid-configuration"
	keysPath          = "/openid/v1/jwks"
)

type api struct{ client kubernetes.Interface }

// OpenAPI returns the API server that c names. It asks it nothing yet.
func OpenAPI(c kube.Config) (API, error) {
	r, err := c.Rest()
	if err != nil {
		return nil, err
	}
	// All node proxies may come at once; how many are under way is bounded by the Reviewer.
	r.QPS, r.Burst, r.Timeout = -1, 0, 5*time.Second
	client, err := kubernetes.NewForConfig(r)
	if err != nil {
		return nil, fmt.Errorf("discovery.kube: %w", err)
	}
	return api{client}, nil
}

func (a api) Review(ctx context.Context, token, audience string) (authnv1.TokenReviewStatus, error) {
	r, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authnv1.TokenReview{Spec: authnv1.TokenReviewSpec{Token: token, Audiences: []string{audience}}}, metav1.CreateOptions{})
	if err != nil {
		return authnv1.TokenReviewStatus{}, err
	}
	return r.Status, nil
}

func (a api) Keys(ctx context.Context) (configuration, set []byte, err error) {
	get := func(path string) ([]byte, error) {
		b, err := a.client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json, application/jwk-set+json").DoRaw(ctx)
		if err == nil && len(b) > maxKeyBytes {
			err = fmt.Errorf("%d bytes: want at most %d", len(b), maxKeyBytes)
		}
		if err != nil {
			return nil, fmt.Errorf("get %s: %w", path, err)
		}
		return b, nil
	}
	if configuration, err = get(configurationPath); err != nil {
		return nil, nil, err
	}
	set, err = get(keysPath)
	return configuration, set, err
}
